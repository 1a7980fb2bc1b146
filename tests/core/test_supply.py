"""When nodes are borrowed, and what becomes of loans: tables, and a lender that does as it pleases."""

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from ebbtide_core.supply.supply import (
    AGAIN_S,
    BETWEEN_LOANS_S,
    KNOWN_S,
    LEFT_S,
    LONGEST_PAUSE_S,
    NOT_NEEDED_S,
    REMEMBERED,
    SETTLES_S,
    SILENT_S,
    STARTS_S,
    AskForLoan,
    CallOff,
    LenderFacts,
    LenderState,
    LoanPhase,
    NodeSupply,
    SupplySettings,
)
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

WAITS = LenderFacts(LenderState.WAITS, "11", "Priority")
RUNS = LenderFacts(LenderState.RUNS, "11")
OVER = LenderFacts(LenderState.OVER, "11", "COMPLETED", proves_death=True)


class Lab:
    """A supply, and its clock."""

    def __init__(self, most: int = 4, least: int = 0, backlog: int = 9) -> None:
        self.supply = NodeSupply("hpc", SupplySettings(most, least, backlog))
        self.now = 1000.0

    def asks(self, demand: int | None, after_s: float = BETWEEN_LOANS_S) -> list[str]:
        self.now += after_s
        return [action.id for action in self.supply.decide(demand, self.now) if isinstance(action, AskForLoan)]

    def calls_off(self, demand: int | None = 0, after_s: float = 0.0) -> list[str]:
        self.now += after_s
        return [action.id for action in self.supply.decide(demand, self.now) if isinstance(action, CallOff)]

    def hears(
        self,
        up: tuple[str, ...] | None = (),
        after_s: float = 1.0,
        left: bool = False,
        listed: tuple[str, ...] = (),
        **facts: LenderFacts,
    ) -> None:
        self.now += after_s
        silent = () if left else [loan.id for loan in self.supply.loans.values() if loan.id not in (up or ())]
        self.supply.hear({f"hpc-{number[1:]}": one for number, one in facts.items()}, up, self.now, silent, listed)

    def phase(self, number: int = 1) -> LoanPhase:
        return self.supply.loans[f"hpc-{number}"].phase


def test_as_many_loans_are_asked_for_as_there_is_demand_one_at_a_time() -> None:
    lab = Lab()
    assert lab.asks(2) == ["hpc-1"]
    assert lab.asks(2, 1.0) == []
    assert lab.asks(2) == ["hpc-2"]
    assert lab.asks(2) == []
    assert lab.asks(None) == lab.asks(0) == []


def test_never_more_than_max_nodes_or_the_backlog() -> None:
    lab = Lab(most=2)
    assert [asked for _ in range(5) for asked in lab.asks(9)] == ["hpc-1", "hpc-2"]
    lab = Lab(backlog=1)
    assert [asked for _ in range(5) for asked in lab.asks(9)] == ["hpc-1"]
    lab.hears(_1=RUNS)
    assert lab.asks(9) == ["hpc-2"]


def test_a_loan_goes_from_asked_to_ended() -> None:
    lab = Lab()
    lab.asks(1)
    assert lab.phase() is LoanPhase.ASKED
    lab.hears(_1=WAITS)
    assert (lab.phase(), lab.supply.loans["hpc-1"].reason) == (LoanPhase.QUEUED, "Priority")
    lab.hears(_1=RUNS)
    assert lab.phase() is LoanPhase.STARTING
    lab.hears(_1=RUNS, up=("hpc-1",))
    assert lab.phase() is LoanPhase.UP
    lab.hears(_1=OVER)
    ended = lab.supply.loans["hpc-1"]
    assert (ended.phase, ended.reason, ended.proved) == (LoanPhase.ENDED, "COMPLETED", True)
    assert (lab.supply.failures, lab.supply.trouble) == (0, "")
    assert lab.asks(1) == ["hpc-2"]


def test_a_loan_of_which_the_lender_knows_no_more_has_ended_and_proves_nothing() -> None:
    lab = Lab()
    lab.asks(1)
    lab.hears(_1=RUNS, up=("hpc-1",))
    lab.hears()
    assert (lab.phase(), lab.supply.loans["hpc-1"].proved) == (LoanPhase.ENDED, False)


def test_a_loan_that_the_lender_never_had_is_a_failure_after_a_while() -> None:
    lab = Lab()
    lab.asks(1)
    lab.hears(after_s=KNOWN_S - 1)
    assert lab.phase() is LoanPhase.ASKED
    lab.hears(after_s=2.0)
    assert (lab.phase(), lab.supply.trouble) == (LoanPhase.ENDED, "the lender never had it")


def test_a_loan_that_the_lender_has_taken_and_does_not_list_yet_goes_on() -> None:
    lab = Lab()
    [id] = lab.asks(1)
    lab.supply.heard_job(id, "i-0abc", lab.now)
    lab.hears(after_s=KNOWN_S - 1)
    assert (lab.phase(), lab.supply.failures) == (LoanPhase.QUEUED, 0)
    lab.hears(_1=WAITS)
    lab.hears()
    assert (lab.phase(), lab.supply.trouble) == (LoanPhase.ENDED, "the lender does not know it any more")


def test_a_loan_that_the_lender_says_it_has_taken_and_never_lists_is_over_after_a_while() -> None:
    lab = Lab()
    [id] = lab.asks(1)
    lab.supply.heard_job(id, "i-0abc", lab.now)
    lab.hears(after_s=KNOWN_S + 1)
    assert (lab.phase(), lab.supply.trouble) == (LoanPhase.ENDED, "the lender never had it")


def test_failures_back_off_and_a_node_that_comes_up_ends_that() -> None:
    lab = Lab(most=99)
    pauses = []
    for _ in range(16):
        [id] = lab.asks(1, LONGEST_PAUSE_S)
        lab.supply.refused(id, "invalid account", lab.now)
        pauses.append(lab.supply.not_before - lab.now)
        assert lab.asks(1, 0.5) == []
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert lab.supply.trouble == "invalid account"
    [id] = lab.asks(1, LONGEST_PAUSE_S)
    lab.supply.see_up([id], lab.now)
    assert (lab.supply.failures, lab.supply.not_before, lab.supply.trouble) == (0, 0.0, "")


@pytest.mark.parametrize("ends", [{"_1": OVER}, {}], ids=["listed as over", "forgotten"])
def test_a_loan_that_ran_while_nobody_looked_is_no_failure(ends: dict[str, LenderFacts]) -> None:
    lab = Lab()
    lab.asks(1)
    lab.hears(_1=WAITS)
    lab.supply.failures, lab.supply.not_before = 3, lab.now + LONGEST_PAUSE_S
    lab.hears(left=True, listed=("hpc-1",), **ends)
    assert (lab.phase(), lab.supply.failures, lab.supply.not_before) == (LoanPhase.ENDED, 0, 0.0)


def test_several_loans_that_are_found_to_have_ended_at_once_are_one_failure() -> None:
    lab = Lab()
    lab.asks(3), lab.asks(3), lab.asks(3)
    lab.hears(_1=WAITS, _2=WAITS, _3=WAITS)
    lab.hears(_1=OVER, _2=OVER, _3=WAITS)
    assert (lab.supply.failures, lab.supply.not_before - lab.now) == (1, 1.0)
    lab.hears(_3=OVER)
    assert (lab.supply.failures, lab.supply.not_before - lab.now) == (2, 2.0)


@pytest.mark.parametrize(
    ("facts", "seconds", "why"),
    [
        (LenderFacts(LenderState.NEVER_STARTS, "11", "PartitionTimeLimit"), 1.0, "it would never start: PartitionTim"),
        (RUNS, STARTS_S + 2, "no agent after 300 s"),
    ],
)
def test_a_loan_that_comes_to_nothing_is_called_off_and_counts_as_a_failure(facts, seconds, why) -> None:
    lab = Lab()
    lab.asks(1)
    lab.hears(_1=facts)
    lab.hears(_1=facts, after_s=seconds)
    assert lab.supply.loans["hpc-1"].called_off.startswith(why)
    assert lab.calls_off(1) == ["hpc-1"]
    assert lab.calls_off(1, 1.0) == []
    assert lab.calls_off(1, AGAIN_S) == ["hpc-1"]
    lab.hears(_1=OVER)
    assert lab.supply.loans["hpc-1"].reason.startswith(why)
    assert lab.supply.failures == 1


def test_a_loan_that_waits_and_that_nobody_needs_any_more_is_called_off_after_a_while() -> None:
    lab = Lab()
    lab.asks(2), lab.asks(2)
    lab.hears(_1=WAITS, _2=WAITS)
    assert lab.calls_off(1) == []
    assert lab.calls_off(1, NOT_NEEDED_S - 5) == []
    assert lab.calls_off(None, 9.0) == []  # not known: as if it were needed
    assert lab.calls_off(1, NOT_NEEDED_S) == ["hpc-2"]


def test_as_many_as_min_nodes_are_kept_even_if_nobody_waits() -> None:
    lab = Lab(least=2)
    assert [*lab.asks(0), *lab.asks(0), *lab.asks(0)] == ["hpc-1", "hpc-2"]
    assert all(loan.kept for loan in lab.supply.loans.values())
    lab.hears(_1=WAITS, _2=WAITS)
    assert lab.calls_off(0, NOT_NEEDED_S) == lab.calls_off(0, NOT_NEEDED_S) == []


def test_a_paused_supply_asks_for_nothing_but_what_a_user_adds() -> None:
    lab = Lab()
    lab.supply.paused = True
    assert lab.asks(3) == []
    lab.supply.wanted = 1
    assert lab.asks(0) == ["hpc-1"]
    assert lab.supply.loans["hpc-1"].added
    assert lab.asks(3) == []


@pytest.mark.parametrize(
    ("demand", "there", "added", "asked"),
    [(0, 0, 4, 4), (1, 1, 1, 1), (2, 0, 2, 4), (2, 1, 0, 1), (0, 2, 1, 1)],
    ids=["nobody waits", "one comes already", "jobs wait, too", "nothing is added", "those that come are too many"],
)
def test_what_a_user_adds_comes_beside_what_jobs_need(demand: int, there: int, added: int, asked: int) -> None:
    lab = Lab(most=9)
    for _ in range(there):
        lab.asks(there)
    lab.supply.wanted = added
    assert len([loan for _ in range(9) for loan in lab.asks(demand)]) == asked
    assert sum(loan.added for loan in lab.supply.loans.values()) == added


def test_what_a_user_adds_has_no_waiting_loan_called_off() -> None:
    lab = Lab()
    lab.asks(1)
    lab.supply.wanted = 1
    assert lab.asks(1) == ["hpc-2"]
    lab.hears(_1=WAITS, _2=WAITS)
    assert lab.calls_off(1) == lab.calls_off(1, NOT_NEEDED_S) == []
    assert lab.calls_off(0, NOT_NEEDED_S) == ["hpc-1"]


def test_what_a_user_adds_comes_beside_the_nodes_that_are_kept() -> None:
    lab = Lab(least=1)
    lab.supply.wanted = 1
    assert [*lab.asks(0), *lab.asks(0), *lab.asks(0)] == ["hpc-1", "hpc-2"]
    assert [(loan.kept, loan.added) for loan in lab.supply.loans.values()] == [(True, False), (False, True)]
    lab = Lab(least=1)
    lab.supply.paused, lab.supply.wanted = True, 1
    assert [*lab.asks(0), *lab.asks(0)] == ["hpc-1"]
    assert not lab.supply.loans["hpc-1"].kept


def test_while_the_master_is_away_nothing_is_asked_for_and_what_a_user_adds_is_not_forgotten() -> None:
    lab = Lab(least=1)
    lab.supply.wanted = 2
    for _ in range(9):
        lab.now += BETWEEN_LOANS_S
        assert list(lab.supply.decide(None, lab.now, away=True)) == []
    assert (lab.supply.wanted, lab.supply.loans) == (2, {})
    assert lab.asks(None) == ["hpc-1"]


def test_a_loan_for_which_the_master_could_invite_no_node_is_asked_for_later_and_is_no_failure() -> None:
    lab = Lab()
    lab.supply.wanted = 1
    [id] = lab.asks(0)
    lab.supply.not_asked(id, "the master is away", lab.now)
    assert (lab.phase(), lab.supply.wanted, lab.supply.failures) == (LoanPhase.ENDED, 1, 0)
    assert lab.asks(0) == ["hpc-2"]


def test_what_a_user_adds_beyond_max_nodes_is_not_borrowed_later() -> None:
    lab = Lab(most=2)
    lab.supply.wanted = 9
    assert [asked for _ in range(3) for asked in lab.asks(9)] == ["hpc-1", "hpc-2"]
    lab.hears(_1=RUNS, _2=RUNS, up=("hpc-1", "hpc-2"))
    lab.hears(_1=OVER, _2=OVER)
    assert (lab.supply.wanted, lab.asks(0)) == (0, [])


def test_a_released_loan_is_called_off_and_is_no_failure() -> None:
    lab = Lab()
    lab.asks(1)
    lab.hears(_1=RUNS)
    lab.supply.release("hpc-1", "released by ann")
    assert lab.calls_off() == ["hpc-1"]
    lab.hears(_1=OVER)
    assert (lab.supply.loans["hpc-1"].reason, lab.supply.failures) == ("released by ann", 0)
    with pytest.raises(KeyError):
        lab.supply.release("hpc-1", "")


def test_a_loan_whose_node_fell_silent_is_given_back_after_a_while_and_is_no_failure() -> None:
    lab = Lab()
    lab.asks(1)
    lab.hears(_1=RUNS, up=("hpc-1",))
    lab.hears(_1=RUNS)
    assert (lab.phase(), lab.calls_off(after_s=SILENT_S)) == (LoanPhase.SILENT, [])
    lab.hears(_1=RUNS)
    assert (lab.supply.loans["hpc-1"].called_off, lab.calls_off()) == ("its node was silent for 600 s", ["hpc-1"])
    lab.hears(_1=OVER)
    assert (lab.supply.loans["hpc-1"].reason, lab.supply.failures) == ("its node was silent for 600 s", 0)


def test_a_loan_whose_node_has_left_is_given_back_soon() -> None:
    lab = Lab()
    lab.asks(1)
    lab.hears(_1=RUNS, up=("hpc-1",))
    lab.hears(_1=RUNS, left=True)
    lab.hears(_1=RUNS, left=True, after_s=LEFT_S - 1)
    assert lab.calls_off() == []
    lab.hears(_1=RUNS, left=True, after_s=2.0)
    assert (lab.supply.loans["hpc-1"].called_off, lab.calls_off()) == ("its node has left", ["hpc-1"])


def test_a_loan_that_had_ended_and_that_a_restored_lender_lists_again_is_called_off_at_once() -> None:
    lab = Lab()
    lab.asks(1)
    lab.hears(_1=RUNS, up=("hpc-1",))
    lab.hears(_1=OVER)
    lab.hears(_1=RUNS, left=True)
    assert (lab.supply.loans["hpc-1"].called_off, lab.calls_off()) == (
        "it had ended, and the lender has it again",
        ["hpc-1"],
    )


@pytest.mark.parametrize("up", [("hpc-1",), (), None])
def test_a_loan_that_was_taken_for_ended_and_may_have_a_node_is_not_called_off(up: tuple[str, ...] | None) -> None:
    lab = Lab()
    lab.asks(1)
    lab.hears(_1=RUNS, up=("hpc-1",))
    lab.hears(up=up)
    assert lab.phase() is LoanPhase.ENDED
    lab.hears(_1=RUNS, up=up)
    assert lab.calls_off(1) == []


def test_a_node_that_speaks_again_has_not_been_silent() -> None:
    lab = Lab()
    lab.asks(1)
    for _ in range(3):
        lab.hears(_1=RUNS, up=("hpc-1",))
        assert lab.phase() is LoanPhase.UP
        lab.hears(_1=RUNS)
        lab.hears(_1=RUNS, after_s=SILENT_S - 1)
    assert lab.calls_off(1) == []


def test_while_the_master_is_away_no_node_counts_as_silent() -> None:
    lab = Lab()
    lab.asks(1)
    lab.hears(_1=RUNS, up=("hpc-1",))
    lab.hears(_1=RUNS, up=None, after_s=2 * SILENT_S)
    assert lab.phase() is LoanPhase.UP
    lab.hears(_1=RUNS)
    lab.hears(_1=RUNS, up=None, after_s=2 * SILENT_S)
    lab.hears(_1=RUNS)
    assert (lab.phase(), lab.calls_off(1)) == (LoanPhase.SILENT, [])


def test_a_node_has_its_time_to_come_up_once_the_master_is_back() -> None:
    lab = Lab()
    lab.asks(1)
    lab.hears(_1=RUNS)
    lab.hears(_1=RUNS, up=None, after_s=2 * STARTS_S)
    lab.hears(_1=RUNS, after_s=STARTS_S - 1)
    assert (lab.phase(), lab.calls_off(1)) == (LoanPhase.STARTING, [])
    lab.hears(_1=RUNS, after_s=2.0)
    assert (lab.calls_off(1), lab.supply.failures) == (["hpc-1"], 1)


def test_a_loan_whose_node_came_up_unseen_and_is_silent_is_not_taken_for_one_that_never_came_up() -> None:
    lab = Lab()
    lab.asks(1)
    lab.hears(_1=RUNS)
    lab.hears(_1=RUNS, listed=("hpc-1",), after_s=STARTS_S + 1)
    lab.hears(_1=RUNS, listed=("hpc-1",), after_s=SILENT_S - 1)
    assert (lab.phase(), lab.calls_off(1), lab.supply.failures) == (LoanPhase.SILENT, [], 0)
    lab.hears(_1=RUNS, listed=("hpc-1",), after_s=2.0)
    assert (lab.calls_off(1), lab.supply.failures) == (["hpc-1"], 0)


@pytest.mark.parametrize(
    ("heard", "failures"),
    [
        ([(WAITS, "up"), (RUNS, "away"), (OVER, "away")], 0),
        ([(WAITS, "away"), (RUNS, "away"), (OVER, "up")], 0),
        ([(WAITS, "up"), (OVER, "away")], 0),
        ([(WAITS, "up"), (RUNS, "up"), (OVER, "away")], 1),
        ([(WAITS, "away"), (RUNS, "up"), (OVER, "away")], 0),
        ([(WAITS, "up"), (RUNS, "away"), (RUNS, "up"), (OVER, "up")], 0),
        ([(WAITS, "away"), (WAITS, "up"), (OVER, "up")], 1),
    ],
    ids=[
        "all the time",
        "until it had ended",
        "it started unseen",
        "not when it started",
        "until it ran",
        "until just before it ended",
        "as it waited only",
    ],
)
def test_a_loan_that_ends_before_it_was_up_is_no_failure_if_the_master_was_away_as_it_started(
    heard: list[tuple[LenderFacts, str]], failures: int
) -> None:
    lab = Lab()
    lab.asks(1)
    for facts, master in heard:
        lab.hears(_1=facts, up=() if master == "up" else None, left=True)
    assert (lab.phase(), lab.supply.failures) == (LoanPhase.ENDED, failures)


def test_a_loan_that_started_while_the_master_was_away_fails_if_no_agent_is_there_in_time_once_it_is_back() -> None:
    lab = Lab()
    lab.asks(1)
    lab.hears(_1=RUNS, up=None)
    lab.hears(_1=RUNS, after_s=STARTS_S - 1)
    assert (lab.calls_off(1), lab.supply.failures) == ([], 0)
    lab.hears(_1=RUNS, after_s=2.0)
    assert (lab.calls_off(1), lab.supply.failures) == (["hpc-1"], 1)


def test_a_request_that_was_not_answered_is_waited_for_and_not_made_again() -> None:
    lab = Lab()
    lab.asks(1)
    lab.supply.unanswered("sbatch: timed out", lab.now)
    assert (lab.phase(), lab.supply.trouble) == (LoanPhase.ASKED, "sbatch: timed out")
    assert lab.asks(1, KNOWN_S - 9) == []
    lab.hears(_1=WAITS)
    assert (lab.phase(), lab.asks(1)) == (LoanPhase.QUEUED, [])


def test_a_clock_that_was_set_back_stops_no_supply() -> None:
    lab = Lab()
    lab.asks(1)
    lab.supply.refused("hpc-1", "no", lab.now)
    lab.now -= 10 * LONGEST_PAUSE_S
    assert lab.asks(1) == ["hpc-2"]


def test_a_lender_is_asked_again_to_end_a_loan_though_the_clock_was_set_back() -> None:
    lab = Lab()
    [id] = lab.asks(1)
    lab.hears(_1=RUNS)
    lab.supply.release(id, "released by ann")
    assert lab.calls_off() == [id]
    assert lab.calls_off(after_s=-3600.0) == [id]


def test_a_loan_that_the_lender_has_though_it_is_over_here_is_taken_back() -> None:
    lab = Lab()
    [id] = lab.asks(1)
    lab.supply.refused(id, "a network error", lab.now)
    lab.hears(_1=RUNS, up=("hpc-1",))
    assert (lab.phase(), lab.asks(1, LONGEST_PAUSE_S)) == (LoanPhase.UP, ["hpc-2"])


def test_a_loan_that_is_taken_back_beside_as_many_as_there_may_be_is_called_off() -> None:
    lab = Lab(most=1)
    [id] = lab.asks(1)
    lab.supply.refused(id, "a network error", lab.now)
    assert lab.asks(1, LONGEST_PAUSE_S) == ["hpc-2"]
    lab.hears(_1=RUNS, _2=RUNS)
    assert lab.calls_off(1) == ["hpc-1"]


def test_a_loan_that_ended_keeps_its_place_until_the_lender_can_not_go_back_on_it() -> None:
    lab = Lab(most=1)
    lab.asks(1)
    lab.hears(_1=RUNS)
    lab.hears(_1=OVER)
    assert lab.asks(1) == []
    lab.hears(_1=RUNS)  # it was killed, and goes on with what it had saved
    assert lab.asks(1) == []
    lab.hears(_1=OVER)
    lab.hears(_1=OVER, after_s=SETTLES_S - 1.0)
    assert lab.asks(1) == []
    lab.hears(_1=OVER, after_s=1.0)
    assert lab.asks(1) == ["hpc-2"]


def test_where_there_is_room_beside_it_nobody_waits_for_a_loan_that_ended() -> None:
    lab = Lab(most=2)
    lab.asks(1)
    lab.hears(_1=RUNS)
    lab.hears(_1=OVER)
    assert lab.asks(1) == ["hpc-2"]


def test_a_loan_that_the_lender_never_had_keeps_no_place() -> None:
    lab = Lab(most=1)
    [id] = lab.asks(1)
    lab.supply.refused(id, "no such account", lab.now)
    assert lab.asks(1, LONGEST_PAUSE_S) == ["hpc-2"]


def test_a_loan_that_is_taken_back_is_what_it_was() -> None:
    lab = Lab(least=1)
    [id] = lab.asks(0)
    lab.hears(_1=RUNS)
    lab.supply.release(id, "released by ann")
    lab.hears()
    assert lab.phase() is LoanPhase.ENDED
    lab.hears(_1=RUNS)
    assert (lab.supply.loans[id].kept, lab.calls_off()) == (True, [id])


def test_what_is_known_of_nodes_counts_until_they_are_described_otherwise() -> None:
    lab = Lab()
    lab.supply.describe("two GPUs")
    [old] = lab.asks(1)
    lab.hears(_1=RUNS, up=(old,))
    assert lab.supply.newest([old]) is lab.supply.loans[old]
    lab.supply.known = {"gpus": 2}
    lab.supply.describe("two GPUs")
    assert lab.supply.known == {"gpus": 2}
    lab.supply.describe("four GPUs")
    assert (lab.supply.known, lab.supply.newest([old])) == ({}, None)
    [new] = lab.asks(1)
    assert lab.supply.newest([old]) is None
    assert lab.supply.newest([old, new]) is lab.supply.loans[new]


def test_a_loan_that_is_not_known_here_is_somebody_elses() -> None:
    lab = Lab()
    lab.hears(_1=RUNS)
    assert lab.supply.loans == {}


def test_of_loans_that_have_ended_the_newest_are_remembered_and_those_whose_nodes_the_master_lists() -> None:
    lab = Lab(most=2)
    lab.asks(2)
    for _ in range(REMEMBERED + 1):
        [id] = lab.asks(2, LONGEST_PAUSE_S)
        lab.supply.refused(id, "no", lab.now)
    lab.hears(_1=OVER)
    lab.hears(_1=OVER, after_s=SETTLES_S)
    lab.supply.forget(["hpc-1"])
    assert len(lab.supply.loans) == REMEMBERED + 1
    assert "hpc-1" in lab.supply.loans
    lab.supply.forget()
    assert [*lab.supply.loans] == [f"hpc-{number}" for number in range(3, REMEMBERED + 3)]


def test_any_number_of_loans_that_end_at_once_keep_their_places_until_they_have_settled() -> None:
    most = REMEMBERED + 10
    lab = Lab(most=most, backlog=most)
    for _ in range(most):
        lab.asks(most)
    lab.hears(**{f"_{number}": RUNS for number in range(1, most + 1)})
    over = {f"_{number}": OVER for number in range(1, most + 1)}
    lab.hears(**over)
    lab.supply.forget()
    assert (lab.asks(most), len(lab.supply.loans)) == ([], most)
    lab.hears(after_s=SETTLES_S, **over)
    lab.supply.forget()
    assert (len(lab.supply.loans), lab.asks(most, LONGEST_PAUSE_S)) == (REMEMBERED, [f"hpc-{most + 1}"])


@pytest.mark.parametrize(
    ("values", "says"),
    [((0,), "max_nodes"), ((257,), "max_nodes"), ((2, 3), "min_nodes"), ((2, -1), "min_nodes"), ((2, 0, 0), "backlog")],
)
def test_settings_that_make_no_sense_are_refused(values, says) -> None:
    with pytest.raises(ValueError, match=f"^{says}: "):
        SupplySettings(*values)


class Lending(RuleBasedStateMachine):
    """A lender that starts, ends and forgets loans as it pleases, and a demand that comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        self.supply, self.now = NodeSupply("hpc", SupplySettings(3, 1, 2)), 0.0
        self.lender: dict[str, LenderFacts] = {}
        self.asked_at: list[float] = []

    @rule(
        seconds=st.sampled_from([1.0, 5.0, 40.0, 400.0]),
        demand=st.sampled_from([None, 0, 1, 5]),
        takes=st.booleans(),
        says=st.sampled_from(["what it did", "nothing", "that it refuses"]),
    )
    def goes_on(self, seconds: float, demand: int | None, takes: bool, says: str) -> None:
        self.now += seconds
        for action in list(self.supply.decide(demand, self.now)):
            match action:
                case AskForLoan(id):
                    if takes:
                        self.lender[id] = LenderFacts(LenderState.WAITS, id)
                    if says == "nothing":
                        self.supply.unanswered("no answer", self.now)
                    elif takes and says == "what it did":
                        self.supply.heard_job(id, id, self.now)
                    else:
                        self.supply.refused(id, "no", self.now)
                case CallOff(id):
                    self.lender[id] = LenderFacts(LenderState.OVER, id, "called off")
            if isinstance(action, AskForLoan):
                self.asked_at.append(self.now)

    @rule(choose=st.randoms(use_true_random=False), state=st.sampled_from([*LenderState, None]))
    def becomes(self, choose, state: LenderState | None) -> None:
        there = [id for id, facts in self.lender.items() if facts.state is not LenderState.OVER]
        if there:
            id = choose.choice(there)
            if state is None:
                del self.lender[id]
            else:
                self.lender[id] = LenderFacts(state, id, "as it pleases")

    @rule(up=st.sampled_from(["all", "none", "nobody knows"]))
    def is_heard(self, up: str) -> None:
        runs = [id for id, facts in self.lender.items() if facts.state is LenderState.RUNS]
        self.supply.hear(self.lender, None if up == "nobody knows" else runs if up == "all" else [], self.now)
        self.supply.forget(runs)
        there = {id for id, facts in self.lender.items() if facts.state is not LenderState.OVER}
        assert there <= {loan.id for loan in self.supply.unfinished()}

    @invariant()
    def no_more_than_it_may(self) -> None:
        unfinished = self.supply.unfinished()
        assert sum(not loan.called_off for loan in unfinished) <= 3
        assert len(self.supply.loans) - len(unfinished) <= REMEMBERED + 3

    @invariant()
    def not_more_often_than_it_may(self) -> None:
        assert all(later - earlier >= BETWEEN_LOANS_S for earlier, later in pairwise(self.asked_at))

    @invariant()
    def ended_loans_stay_ended(self) -> None:
        for loan in self.supply.loans.values():
            assert loan.is_over or loan.phase is not LoanPhase.ENDED


TestLending = Lending.TestCase
