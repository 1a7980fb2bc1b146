"""The deadlines of an attempt's end, without processes and without a clock."""

import math

import pytest
from ebbtide_agent.supervisor.leaving.ending import AttemptEnding, DueAction, all_failed, ended_after_others


def ending(ranks: int) -> AttemptEnding:
    return AttemptEnding(set(range(ranks)))


def due(case: AttemptEnding, now: float, handlers_live: bool = False) -> DueAction:
    """What is due, and if it is the signal, it is sent."""
    what = case.due(now, handlers_live)
    if what is DueAction.SIGNAL:
        case.signalled()
    return what


def test_nothing_is_due_while_nothing_happens():
    assert ending(2).due(1e9, False) is DueAction.NOTHING
    assert ending(2).kill_at == math.inf


def test_a_stop_signals_once_and_kills_at_the_end_of_its_grace_period():
    case = ending(1)
    case.request_stop(10.0, now=100.0)
    assert [due(case, now) for now in (100.0, 100.0, 109.9, 110.0)] == [
        DueAction.SIGNAL,
        DueAction.NOTHING,
        DueAction.NOTHING,
        DueAction.KILL,
    ]


def test_a_later_stop_shortens_but_never_lengthens():
    case = ending(1)
    case.request_stop(10.0, now=100.0)
    case.request_stop(60.0, now=101.0)
    assert case.kill_at == 110.0
    case.request_stop(3.0, now=102.0)
    assert case.kill_at == 105.0
    assert case.stop_requested_at == 100.0


def test_a_stop_without_grace_kills_without_a_signal():
    case = ending(1)
    case.request_stop(0.0, now=100.0)
    assert due(case, 100.0) is DueAction.KILL


def test_after_a_stop_every_rank_may_end_as_it_likes_for_the_whole_grace_period():
    case = ending(3)
    case.request_stop(60.0, now=100.0)
    assert due(case, 100.0) is DueAction.SIGNAL
    case.rank_ended(0, failed=True, now=101.0)
    case.rank_ended(1, failed=True, now=102.0)
    assert due(case, 159.0) is DueAction.NOTHING
    assert case.failed_rank is None
    assert case.kill_at == 160.0


def test_after_a_stop_processes_that_handle_the_signal_may_outlive_the_launched_ones():
    case = ending(1)
    case.request_stop(60.0, now=100.0)
    assert due(case, 100.0) is DueAction.SIGNAL
    case.rank_ended(0, failed=False, now=101.0)
    assert due(case, 102.0, handlers_live=True) is DueAction.NOTHING
    assert due(case, 103.0, handlers_live=False) is DueAction.KILL


def test_the_end_of_a_single_process_leaves_no_time_to_what_it_started():
    case = ending(1)
    case.rank_ended(0, failed=False, now=100.0)
    assert due(case, 100.0) is DueAction.KILL


def test_a_failed_rank_has_the_others_signalled_and_soon_killed():
    case = ending(3)
    case.rank_ended(1, failed=True, now=100.0)
    assert due(case, 100.0) is DueAction.SIGNAL
    assert due(case, 104.9) is DueAction.NOTHING
    assert due(case, 105.0) is DueAction.KILL
    assert case.failed_rank == 1


def test_whoever_is_left_behind_by_the_only_one_that_failed_is_signalled_before_it_is_killed():
    case = ending(1)
    case.rank_ended(0, failed=True, now=100.0)
    assert due(case, 100.0) is DueAction.SIGNAL
    assert due(case, 104.9, handlers_live=True) is DueAction.NOTHING
    assert due(case, 105.0, handlers_live=True) is DueAction.KILL
    assert due(case, 100.1, handlers_live=False) is DueAction.KILL


def test_the_rank_that_failed_first_is_the_one_that_failed():
    case = ending(3)
    case.rank_ended(2, failed=True, now=100.0)
    case.rank_ended(0, failed=True, now=101.0)
    assert case.failed_rank == 2
    assert case.kill_at == 105.0


def test_the_others_have_a_while_after_the_leader_ended_well_and_no_signal():
    case = ending(2)
    case.rank_ended(0, failed=False, now=100.0)
    assert due(case, 100.0) is DueAction.NOTHING
    assert due(case, 109.9) is DueAction.NOTHING
    assert due(case, 110.0) is DueAction.KILL


def test_another_ranks_good_end_means_nothing():
    case = ending(2)
    case.rank_ended(1, failed=False, now=100.0)
    assert due(case, 1e9) is DueAction.NOTHING


def test_a_stop_does_not_disturb_what_ends_by_itself_but_may_hurry_it():
    case = ending(2)
    case.rank_ended(0, failed=False, now=100.0)
    case.request_stop(2.0, now=101.0)
    assert due(case, 101.0) is DueAction.NOTHING
    assert due(case, 103.0) is DueAction.KILL


def test_a_stop_after_a_failure_signals_nobody_twice_and_changes_no_blame():
    case = ending(3)
    case.rank_ended(1, failed=True, now=100.0)
    assert due(case, 100.0) is DueAction.SIGNAL
    case.request_stop(60.0, now=101.0)
    assert due(case, 101.0) is DueAction.NOTHING
    case.rank_ended(2, failed=True, now=102.0)
    assert (case.failed_rank, case.kill_at) == (1, 105.0)


@pytest.mark.parametrize(
    ("returncode", "left_with", "counts"),
    [
        pytest.param(0, [1], 0, id="it succeeded"),
        pytest.param(75, [1], 75, id="it says itself that it left"),
        pytest.param(1, [0, 143], 143, id="those below it left, and it calls that a failure"),
        pytest.param(-9, [143, 1], 1, id="one below it failed, and it had to be killed"),
        pytest.param(1, [0], -15, id="that one below it succeeded says nothing of all"),
        pytest.param(-15, [], -15, id="nobody knows how those below it ended"),
    ],
)
def test_a_parent_that_was_ended_when_all_below_it_had_left_counts_as_these_do(returncode, left_with, counts):
    assert ended_after_others(returncode, left_with, signum=15) == counts


@pytest.mark.parametrize(
    ("codes", "failed"), [([], False), ([1, 2], True), ([1, None], False), ([1, 143], False), ([1, -15], False)]
)
def test_those_that_were_asked_failed_only_if_each_of_them_says_so(codes, failed):
    assert all_failed(codes) is failed
