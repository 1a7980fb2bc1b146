"""The checks of a day can fail."""

import pytest

from tests.e2e.day.evidence import Entry
from tests.e2e.day.sharing import Cut, fair
from tests.e2e.day.stories import waits
from tests.e2e.day.test_nothing_is_lost import check_progress
from tests.e2e.day.test_stories import explains


def line(what, step=0, attempt=1):
    return {"what": what, "step": step, "attempt": attempt}


def entry(at, kind, text=""):
    return Entry(at, kind, "1", "", text, {})


def test_fair_shares_follow_demand_and_are_capped_by_it() -> None:
    demand = {"anna": 10.0, "bob": 30.0}
    assert fair(8.0, demand, demand) == pytest.approx({"anna": 2.0, "bob": 6.0})
    assert fair(8.0, {"anna": 1.0, "bob": 30.0}, {"anna": 1.0, "bob": 1.0}) == {"anna": 1.0, "bob": 7.0}
    assert fair(50.0, demand, demand) == demand
    assert fair(0.0, demand, demand) == {"anna": 0.0, "bob": 0.0}


def test_a_job_that_is_larger_than_its_users_share_is_not_due() -> None:
    def due(*waiting: tuple[float, float]) -> float:
        demand = {"anna": 1.0 + sum(most for _, most in waiting), "bob": 6.0}
        return Cut(0.0, 1.0, 6, demand, {"anna": 1.0, "bob": 5.0}, {"anna": [*waiting], "bob": []}).due()["anna"]

    assert due((3.0, 3.0)) == pytest.approx(1.0)  # of a share of 2.4
    assert due((1.0, 3.0)) == due((2.0, 2.0), (1.0, 1.0)) == pytest.approx(2.4)
    assert due((1.0, 1.0)) == pytest.approx(1.5)
    assert due((1.0, 1.0), (3.0, 3.0)) == pytest.approx(2.0)  # of a share of 2.7


def test_a_step_that_was_saved_may_not_be_made_again() -> None:
    good = [line("begin"), line("step", 0), line("saved", 1), line("step", 1), line("begin", 1, 2), line("step", 1, 2)]
    check_progress("1", good)
    with pytest.raises(AssertionError, match="had step 1 on disk, attempt 2"):
        check_progress("1", [*good[:-2], line("begin", 0, 2)])


def test_two_attempts_may_not_compute_side_by_side() -> None:
    lines = [line("begin"), line("step", 0), line("begin", 0, 2), line("step", 1, 1)]
    with pytest.raises(AssertionError, match="attempt 2 goes on beside"):
        check_progress("1", lines)


def test_a_wait_needs_a_reason_and_how_the_last_attempt_ended_is_none() -> None:
    placed = "attempt 1 placed on 1 GPU of node a"
    story = [entry(0.0, "JobSubmitted"), entry(5.0, "HoldRequested", "held by user (until then: waiting for 1 GPU)")]
    story += [entry(7.0, "ReleaseRequested"), entry(9.0, "AttemptPlaced", placed)]
    found = list(waits(story))
    assert [(wait.seconds, explains(wait.why)) for wait in found] == [(5.0, True), (2.0, True), (2.0, False)]
    assert not explains("failed with exit code 3")
    assert explains("failed with exit code 3; tried again 2 s later")
