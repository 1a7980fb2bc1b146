"""Moldable and Malleable Equipartition (seed 001, §IV-A)."""

from collections import Counter
from fractions import Fraction

import pytest
from ebbtide_core.events import HoldRequested, NodeDisconnected, ResizeRequested, ResumeRequested, SuspendRequested
from ebbtide_core.events.bookings import BookedGpu, BookingMade
from ebbtide_core.model.types import WHOLE, GpuId, JobState, NodeId, SuspendMode, gpus
from ebbtide_core.planning.seats import dhondt, size_at_most, sizes
from ebbtide_core.policies.registry import PolicyError, create_policy
from hypothesis import given
from hypothesis import strategies as st

from tests.core.lab import DONE, GIB, Lab, gpus_of, launched, registration, stopped
from tests.core.policies.equipartition import PAPER, malleable, moldable, settled, share, shares, together

# --- numbers ---


@given(
    candidates=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=12),
    more=st.integers(0, 200),
)
def test_seats_are_dealt_out_as_one_after_the_other_would_be(candidates: list[tuple[int, int]], more: int) -> None:
    votes, starts = [list(column) for column in zip(*candidates, strict=True)]
    dealt = list(starts)
    for _ in range(more):
        dealt[max(range(len(votes)), key=lambda k: (Fraction(votes[k], dealt[k] + 1), -k))] += 1
    assert dhondt(votes, starts, sum(starts) + more) == dealt


def test_with_equal_votes_the_first_get_one_more() -> None:
    assert dhondt([240] * 4, [1] * 4, 10) == [3, 3, 2, 2]


def test_nobody_wins_more_seats_than_votes_while_there_are_more_votes_than_seats() -> None:
    assert dhondt([1, 2, 9], [1, 1, 1], 11) == [1, 2, 8]


def test_candidates_without_votes_keep_what_they_start_with() -> None:
    assert dhondt([0, 5], [1, 1], 5) == [1, 4]
    assert dhondt([0, 0], [1, 1], 5) == [1, 1]


def test_fewer_seats_than_there_are_to_start_with_are_refused() -> None:
    with pytest.raises(ValueError, match="1 seats are fewer than the 2 to start with"):
        dhondt([1, 1], [1, 1], 1)


@given(low=st.sampled_from([*(WHOLE // n for n in range(16, 0, -1)), 2 * WHOLE, 3 * WHOLE]), more=st.integers(0, 5))
def test_a_size_is_the_greatest_that_a_job_may_have(low: int, more: int) -> None:
    job = Lab().submit(gpus(low), max(gpus(low), Fraction(more)))
    assert list(sizes(job.gpus_min, job.gpus_max)) == job.sizes()
    for limit in [*job.sizes(), WHOLE // 5 + 7, 5 * WHOLE // 2, 1, 9 * WHOLE]:
        assert size_at_most(job, limit) == max([size for size in job.sizes() if size <= limit], default=0)


# --- moldable: the four cases ---


CASES: dict[str, tuple[int, list[tuple[float | str, float | str]], list[float | str]]] = {
    "1: smallest sizes as much as there is: these": (2, [(1, 4), (1, 4)], [1, 1]),
    "1: more than there is: in order of arrival": (2, [("1/2", 4)] * 5, ["1/2"] * 4 + [0]),
    "1: who does not fit is passed over": (2, [("1/2", 1), (2, 2), ("1/2", 1)], ["1/2", 0, "1/2"]),
    "2: greatest sizes no more than the vacant GPUs: these": (4, [(1, 3), ("1/4", 1)], [3, 1]),
    "3: one each, the others one by one": (4, [(1, 4)] * 3, [2, 1, 1]),
    "3: more votes, more seats": (6, [(1, 8), (1, 4), ("1/4", 2)], [3, 2, 1]),
    "3: nobody starts below what they need": (6, [(3, 6), (1, 6)], [3, 3]),
    "3: whoever cannot have a whole GPU has what they can": (3, [("1/4", "1/2"), (1, 8)], ["1/2", 2]),
    "3: one size": (3, [(1, 4)], [3]),
    "4: a GPU is divided among those that chose it": (1, [("1/4", 4)] * 3, ["1/3"] * 3),
    "4: the GPU with the fewest is chosen": (2, [("1/4", 4)] * 3, ["1/2", 1, "1/2"]),
    "4: nobody gets less than they need": (2, [("1/4", 1), (1, 1), ("1/4", 1)], ["1/2", 1, "1/2"]),
    "4: nobody gets more than they may": (1, [("1/4", "1/4"), ("1/4", 1)], ["1/4", "1/2"]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_four_cases(case: str) -> None:
    count, ranges, expected = CASES[case]
    wanted = [Fraction(each) for each in expected]
    assert shares(together(moldable(count), *ranges)) == wanted
    lab = malleable(count)
    jobs = together(lab, *ranges)
    lab.settle()
    assert shares(jobs) == wanted


def test_those_that_run_are_left_alone() -> None:
    lab = moldable(4)
    first = lab.running(1, 4)
    second = lab.submit(1, 4)
    assert (share(first), share(second)) == (4, 0)
    assert stopped(lab.last) == set()


def test_what_is_free_beside_them_is_divided() -> None:
    lab = moldable(4)
    lab.running(1)
    assert share(lab.submit(1, 8)) == 3


def test_a_gpu_with_fewer_jobs_is_chosen_first() -> None:
    lab = moldable(2)
    lab.running("1/4", "1/4")
    lab.running("1/2", "1/2", suspend=SuspendMode.NONE)
    jobs = together(lab, ("1/4", 1), ("1/4", 1), ("1/4", 1))
    assert shares(jobs) == [Fraction(1, 2), Fraction(1, 2), Fraction(1, 4)]
    assert Counter(gpu for job in jobs for gpu in gpus_of(job)) == {"a1": 2, "a0": 1}


def test_gpu_memory_limits_how_many_share_a_gpu() -> None:
    lab = moldable(2)
    jobs = together(lab, *[("1/4", 1)] * 5, gpu_mem_bytes=15 * GIB)
    assert shares(jobs) == [Fraction(1, 2)] * 4 + [0]
    assert Counter(gpu for job in jobs for gpu in gpus_of(job)) == {"a0": 2, "a1": 2}


def test_a_whole_gpu_has_its_memory_once_even_if_its_job_could_share_it() -> None:
    lab = malleable(1)
    lab.tell(registration("b", 1))
    small = lab.running("1/4", "1/4", gpu_mem_bytes=15 * GIB)
    growing = lab.running("1/4", 1)
    large = lab.submit("1/4", 1, gpu_mem_bytes=30 * GIB)  # fits neither beside 15 nor beside half of 40 GiB
    lab.settle()
    assert shares([small, growing, large]) == [Fraction(1, 4), 1, 0]
    assert len(growing.attempts) == 1


def test_the_paper_s_example_of_two_tasks_takes_four_seconds_each() -> None:
    """Seed 001 §VI-A: v = 4 each, two processors; side by side on one each, flow time 4 (rigid: 3 on average)."""
    lab = moldable(2)
    assert shares(together(lab, (1, 2), (1, 2), work_s=4.0)) == [1, 1]


def test_jobs_without_gpus_start_whatever_the_others_do() -> None:
    for lab in (moldable(1), malleable(1)):
        lab.running(1, suspend=SuspendMode.NONE)
        lab.submit(1)
        assert lab.submit(0).state is JobState.STARTING


def test_a_job_that_no_connected_node_can_run_keeps_nobody_small() -> None:
    for lab in (moldable(2), malleable(2)):
        lab.tell(registration("b", 8))
        lab.tell(NodeDisconnected(NodeId("b")))
        big = lab.submit(8)
        assert share(lab.submit(1, 2)) == 2
        assert big.reason == "waiting for 8 GPUs on one node: the connected ones have 2 at most"


def test_gpus_in_pieces_give_the_next_smaller_size() -> None:
    lab = moldable(2, "ab")
    first = [lab.running(1, 1) for _ in range(2)]
    assert len({gpu[0] for job in first for gpu in gpus_of(job)}) == 1  # best fit: one node is free
    assert share(lab.submit(1, 4)) == 2
    assert share(moldable(2, "ab").submit(1, 4, max_nodes=2)) == 4


# --- malleable ---


def test_a_job_that_comes_gets_its_share_of_those_that_run() -> None:
    lab = malleable(4)
    first = lab.running(1, 4)
    before = gpus_of(first)
    second = lab.submit(1, 4)
    assert stopped(lab.last) == {first.id}
    lab.settle()
    assert shares([first, second]) == [2, 2]
    assert gpus_of(first) < before
    assert first.attempts[-1].number == 2
    assert first.suspending.preemptions == 0


def test_whoever_is_left_grows_and_keeps_what_they_have() -> None:
    lab = malleable(4)
    first, second = settled(lab, (1, 4), (1, 4))
    before = gpus_of(second)
    lab.end(first, DONE)
    lab.settle()
    assert gpus_of(second) > before
    assert share(second) == 4


def test_those_whose_share_stays_are_not_touched() -> None:
    lab = malleable(7)
    first, second, third = settled(lab, (1, 7), (1, 7), (1, 7))
    assert shares([first, second, third]) == [3, 2, 2]
    before, attempts = gpus_of(second), len(second.attempts)
    fourth = lab.submit(1, 7)
    assert stopped(lab.last) == {first.id}
    lab.settle()
    assert shares([first, second, third, fourth]) == [2, 2, 2, 1]
    assert (gpus_of(second), len(second.attempts)) == (before, attempts)


def test_nobody_is_started_before_the_gpus_are_free() -> None:
    lab = malleable(2)
    first = lab.running(1, 2)
    second = lab.submit(1, 2)
    assert launched(lab.last) == set()
    lab.exit(first)
    assert second.state is JobState.PENDING
    lab.free(first)
    assert launched(lab.last) == {first.id, second.id}


def test_late_arrivals_wait_while_all_have_their_smallest_size() -> None:
    lab = malleable(2)
    early = settled(lab, (1, 2), (1, 2))
    late = lab.submit(1, 2)
    assert shares([*early, late]) == [1, 1, 0]
    assert stopped(lab.last) == set()
    assert late.reason == "waiting for 1 GPU"
    lab.end(early[0], DONE)
    assert share(late) == 1


def test_who_came_first_is_served_first_even_if_that_suspends_another() -> None:
    lab = malleable(1)
    first = lab.running(1)
    lab.tell(SuspendRequested(first.id))
    lab.end(first)
    second = lab.running(1)
    lab.tell(ResumeRequested(first.id))
    assert stopped(lab.last) == {second.id}
    assert second.reason == "no room is left beside the jobs that came earlier"
    lab.settle()
    assert (first.state, second.state) == (JobState.RUNNING, JobState.SUSPENDED)


def test_a_job_with_little_work_left_keeps_what_it_has() -> None:
    lab = malleable(4, min_work_s="300")
    nearly_done = lab.running(1, 4, work_s=250.0)
    second = lab.submit(1, 4)
    assert stopped(lab.last) == set()
    assert share(second) == 0
    lab.end(nearly_done, DONE)
    assert share(second) == 4


def test_work_is_counted_while_it_is_done() -> None:
    lab = malleable(4, min_work_s="300")
    job = lab.running(1, 4, work_s=1000.0)
    lab.wait(180)  # 4 GPUs did 720 and more of the 1000
    lab.submit(1, 4)
    assert stopped(lab.last) == set()
    assert job.state is JobState.RUNNING


def test_jobs_that_may_not_be_suspended_keep_what_they_have() -> None:
    lab = malleable(4)
    fixed = lab.running(2, 3, suspend=SuspendMode.NONE)
    jobs = settled(lab, ("1/2", 4), ("1/2", 4))
    assert shares([fixed, *jobs]) == [3, Fraction(1, 2), Fraction(1, 2)]


@pytest.mark.parametrize("policy", ["malleable-equipartition", "malleable-proportional"])
def test_a_held_job_that_runs_keeps_what_it_has_and_what_is_beside_it_is_divided(policy: str) -> None:
    lab = Lab(policy, gpus=8, **PAPER)
    held, other = (lab.running(1, 4) for _ in range(2))
    lab.tell(HoldRequested(held.id))
    newcomer = lab.submit(1, 4)
    lab.settle()
    assert shares([held, other, newcomer]) == [4, 2, 2]


@pytest.mark.parametrize("policy", ["moldable-equipartition", "malleable-equipartition"])
def test_jobs_that_share_gpus_pass_one_that_another_user_has_booked(policy: str) -> None:
    lab = Lab(policy, gpus=2)
    running = [lab.running("1/4") for _ in range(2)]
    [used] = set.union(*(gpus_of(job) for job in running))
    [booked] = {"a0", "a1"} - {used}
    gpus = (BookedGpu(NodeId("a"), GpuId(booked)),)
    lab.tell(BookingMade(booking="1", user="bob", since=lab.now, until=lab.now + 36_000, gpus=gpus, window="w"))
    jobs = together(lab, ("1/4", 1), ("1/4", 1))
    assert [gpus_of(job) for job in jobs] == [{used}, {used}]


@pytest.mark.parametrize("policy", ["moldable-equipartition", "malleable-equipartition", "malleable-proportional"])
@pytest.mark.parametrize("ranges", [((1, 2), (1, 2)), (("1/4", 2), ("1/4", 2)), ((1, 4), (1, 4))])
def test_gpus_that_another_user_has_booked_are_not_divided(policy: str, ranges: tuple[tuple[str | int, int]]) -> None:
    lab = Lab(policy, gpus=4)
    booked = tuple(BookedGpu(NodeId("a"), GpuId(gpu)) for gpu in ("a2", "a3"))
    lab.tell(BookingMade(booking="1", user="bob", since=lab.now, until=lab.now + 36_000, gpus=booked, window="w"))
    assert shares(together(lab, *ranges)) == [1, 1]


def test_an_attempt_is_left_alone_until_it_has_run_for_a_while() -> None:
    lab = malleable(4, resize_after_s="60")
    first = lab.running(1, 4)
    started = lab.now
    second = lab.submit(1, 4)
    assert stopped(lab.last) == set()
    assert share(second) == 0
    assert started + 60 in [time for _, time in lab.wakes]
    lab.wait(60)
    assert stopped(lab.last) == {first.id}


def test_an_attempt_that_has_not_started_yet_is_left_alone() -> None:
    lab = malleable(4)
    first = lab.submit(1, 4)
    second = lab.submit(1, 4)
    assert stopped(lab.last) == set()
    lab.start(first)
    assert stopped(lab.last) == {first.id}
    lab.settle()
    assert shares([first, second]) == [2, 2]


@pytest.mark.parametrize(("work", "expected"), [(1000.0, 4), (300.0, 2)])  # on 2 and 4 GPUs: 500 and 250, 150 and 75 s
def test_a_job_grows_only_if_that_saves_more_than_its_restart_costs(work: float, expected: int) -> None:
    lab = malleable(4, gain_restarts="1")
    first, second = settled(lab, (1, 4), (1, 4), work_s=work)
    second.suspending.restart_cost_s = 100.0
    lab.end(first, DONE)
    lab.settle()
    assert share(second) == expected


def test_gpus_that_one_does_not_want_go_to_the_others() -> None:
    lab = malleable(6, gain_restarts="1")
    jobs = settled(lab, (1, 6), (1, 6), (1, 6), work_s=10_000.0)
    jobs[1].suspending.restart_cost_s = 1e6
    lab.end(jobs[0], DONE)
    lab.settle()
    assert shares(jobs[1:]) == [2, 4]


def test_a_resize_by_the_user_counts_at_once() -> None:
    lab = malleable(4, resize_after_s="1000", min_work_s="1000")
    job = lab.running(1, 4, work_s=500.0)
    lab.tell(ResizeRequested(job.id, WHOLE, 2 * WHOLE))
    lab.settle()
    assert share(job) == 2


def test_jobs_share_gpus_when_they_are_many_and_part_again_when_they_are_few() -> None:
    lab = malleable(2)
    jobs = settled(lab, *[("1/4", 2)] * 8)
    assert shares(jobs) == [Fraction(1, 4)] * 8
    late = lab.submit("1/4", 2)
    assert share(late) == 0
    for job in jobs[:7]:
        lab.end(job, DONE)
        lab.settle()
    assert shares([jobs[7], late]) == [1, 1]


def test_a_job_that_shares_a_gpu_stays_there_when_it_gets_more_of_it() -> None:
    lab = malleable(2)
    jobs = settled(lab, *[("1/4", 1)] * 6)
    assert shares(jobs) == [Fraction(1, 3)] * 6
    places = {job.id: gpus_of(job) for job in jobs}
    lab.end(jobs[0], DONE)
    lab.settle()
    assert Counter(shares(jobs[1:])) == {Fraction(1, 3): 3, Fraction(1, 2): 2}
    assert all(gpus_of(job) == places[job.id] for job in jobs[1:])


def test_jobs_move_if_there_is_no_room_otherwise() -> None:
    lab = Lab("malleable-equipartition", "", **PAPER)
    for name in "ab":
        lab.tell(registration(name, 2, checkpoint_root_id="shared"))
    small = settled(lab, *[(1, 1)] * 4)
    one_of_each = {next(iter(gpus_of(job)))[0]: job for job in small}
    assert set(one_of_each) == {"a", "b"}
    for job in small:
        if job not in one_of_each.values():
            lab.end(job, DONE)
    big = lab.submit(2)
    lab.settle()
    assert shares([big, *one_of_each.values()]) == [2, 1, 1]


@pytest.mark.parametrize("option", ["min_work_s", "resize_after_s", "gain_restarts"])
def test_wrong_options_are_named(option: str) -> None:
    for value in ("-1", "nan", "inf"):
        with pytest.raises(PolicyError, match=f"{option} is at least 0 and finite, not"):
            create_policy("malleable-equipartition", {option: value})
