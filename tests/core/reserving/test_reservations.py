"""Jobs of unknown length that reserve time: ``--time auto``."""

from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.model.spec import JobSpec, SpecError, validate
from ebbtide_core.model.types import JobState, NodeId, SuspendMode
from ebbtide_core.reserving.live import FIRST_S, next_reservation

from tests.core.lab import DONE, Lab, registration, stepped_aside, stopped


@pytest.fixture
def lab() -> Lab:
    return Lab("fifo", gpus=1)


def run_once(lab: Lab, seconds: float) -> None:
    job = lab.running(1, name="train")
    lab.wait(seconds)
    lab.end(job, DONE)


def test_without_history_the_first_reservation_is_a_fixed_time_and_says_why(lab: Lab) -> None:
    job = lab.submit(1, name="train", time_auto=True)
    assert job.attempts[0].reserved_s == FIRST_S
    assert "too little history, 0 of 5 runs" in job.reason


def test_at_the_end_of_its_reservation_a_job_checkpoints_and_asks_for_the_next(lab: Lab) -> None:
    job = lab.running(1, name="train", time_auto=True)
    lab.wait(FIRST_S - 10)
    assert stopped(lab.last) == set()
    lab.wait(20)
    assert stopped(lab.last) == {job.id}
    assert job.reason == "its reservation of 3600 s is over; it asks for the next"
    lab.end(job, stepped_aside())
    assert job.state is JobState.STARTING
    assert job.attempts[1].reserved_s == 2 * FIRST_S
    assert (job.suspending.preemptions, job.retries.failures, job.retries.restarts) == (0, 0, 0)


def test_who_waits_gets_its_turn_when_a_reservation_ends(lab: Lab) -> None:
    job = lab.running(1, name="train", time_auto=True)
    other = lab.submit(1)
    lab.wait(FIRST_S)
    lab.end(job, stepped_aside())
    assert job.state is JobState.STARTING  # it came first
    assert other.state is JobState.PENDING


def test_with_enough_runs_reservations_follow_what_they_took(lab: Lab) -> None:
    for seconds in (98.0, 98.0, 98.0, 98.0, 998.0):
        run_once(lab, seconds)
    job = lab.running(1, name="train", time_auto=True)
    first = job.attempts[0].reserved_s
    assert first == pytest.approx(100, abs=3)
    assert "from 5 earlier runs" in lab.cluster.story(job.id)[1][1].reason
    lab.wait(first)
    lab.end(job, stepped_aside())
    assert job.attempts[1].reserved_s == pytest.approx(1000, abs=5)


def test_other_scripts_and_other_users_tell_nothing(lab: Lab) -> None:
    for _ in range(6):
        run_once(lab, 50.0)
    assert lab.submit(1, name="another", time_auto=True).attempts[0].reserved_s == FIRST_S


def test_a_plain_time_limit_still_ends_the_job(lab: Lab) -> None:
    job = lab.running(1, time_limit_s=100.0)
    lab.wait(101)
    lab.end(job, stepped_aside())
    assert (job.state, job.attempts[0].reserved_s) == (JobState.FAILED, None)


@pytest.mark.parametrize("seconds", [100.1, 33.3, 0.7])
def test_a_time_is_up_at_its_very_end_whatever_rounding_makes_of_it(lab: Lab, seconds: float) -> None:
    for _ in range(5):
        job = lab.running(1, time_limit_s=seconds)
        lab.now += seconds - 1
        lab.tell(e.SchedulingDue())
        assert stopped(lab.last) == {job.id}
        lab.end(job, stepped_aside())


@pytest.mark.parametrize("spec", [{"time_limit_s": 100.0}, {"time_auto": True}])
def test_a_time_that_is_up_while_the_node_is_silent_is_up_when_it_is_back(lab: Lab, spec: dict[str, Any]) -> None:
    job = lab.running(1, **spec)
    lab.tell(e.NodeLost(NodeId("a"), 60.0))
    lab.wait(FIRST_S)
    lab.tell(registration("a", 1, known=lab.known(job)))
    assert stopped(lab.last) == {job.id}


def test_a_time_limit_bounds_all_reservations_together(lab: Lab) -> None:
    job = lab.running(1, name="train", time_auto=True, time_limit_s=5000.0)
    lab.wait(FIRST_S)
    lab.end(job, stepped_aside())
    lab.start(job)
    lab.wait(1500)
    lab.end(job, stepped_aside())
    assert job.state is JobState.FAILED


def test_a_job_that_cannot_be_suspended_cannot_reserve() -> None:
    with pytest.raises(SpecError, match="--time auto: needs a job that can be suspended"):
        validate(JobSpec(command=("x",), workdir="/", time_auto=True, suspend=SuspendMode.NONE))


@pytest.mark.parametrize(
    ("runs", "used", "seconds"),
    [
        ([], 0.0, 3600.0),
        ([], 3600.0, 7200.0),
        ([100.0, 40.0], 0.0, 200.0),
        ([100.0, 40.0], 250.0, 400.0),
        ([10.0] * 5, 0.0, 10.0),
        ([10.0] * 5, 10.0, 20.0),
        ([10.0] * 9 + [1000.0], 0.0, 10.0),
        ([10.0] * 9 + [1000.0], 10.0, 1000.0),
        ([10.0] * 9 + [1000.0], 1000.0, 2000.0),
        ([90.0, 100.0, 95.0, 92.0, 97.0], 0.0, 100.0),
        ([0.0], 0.0, 3600.0),
        ([0.0] * 5, 0.0, 3600.0),
        ([0.0] * 4 + [10.0], 0.0, 20.0),
    ],
)
def test_the_next_reservation_is_longer_than_what_was_used(runs: list[float], used: float, seconds: float) -> None:
    reserved, known = next_reservation(runs, used)
    assert reserved == seconds > used
    assert known
