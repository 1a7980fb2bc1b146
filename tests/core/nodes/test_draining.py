"""Jobs leave a drained node in time, however many they are."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.commands import Resume
from ebbtide_core.model.types import JobId, JobState, Loan, NodeId, StopCause, SuspendMode
from ebbtide_core.nodes.draining import LEAVE_AT_ONCE, DrainForecast, DrainOutcome, drain_forecasts
from ebbtide_core.policies.registry import POLICIES

from tests.core.lab import DONE, Lab, registration, stepped_aside, stopped, wake_times
from tests.core.lifecycle.test_swaps import away, orders, returned, swapped, swapper
from tests.core.nodes.test_foreign_use import PYTHON, use


@pytest.fixture
def lab() -> Lab:
    return Lab(gpus=2)


def test_of_very_many_on_a_drained_node_some_leave_at_a_time(lab: Lab) -> None:
    jobs = [lab.running(0) for _ in range(2 * LEAVE_AT_ONCE + 1)]
    told = [lab.cluster.handle(e.NodeDrained(node=NodeId("a"), deadline=lab.now), lab.now)]
    while any(time <= lab.now for time in wake_times(told[-1])):
        told.append(lab.cluster.handle(e.SchedulingDue(), lab.now))
    assert [len(stopped(commands)) for commands in told if stopped(commands)] == [LEAVE_AT_ONCE, LEAVE_AT_ONCE, 1]
    assert all(job.live is not None and job.live.stop is not None for job in jobs)


def test_who_is_to_leave_a_drained_node_leaves_whatever_else_happens_at_that_very_time(lab: Lab) -> None:
    job, later = lab.running(grace_s=10.0), lab.submit(begin_at=lab.now + 1000.0)
    lab.tell(e.NodeDrained(node=NodeId("a"), deadline=lab.now + 110.0))
    assert later.admission is not None
    lab.cluster.handle(e.HoldRequested(later.id), lab.now + 101.0)  # before the pass that was asked for
    assert stopped(lab.cluster.handle(e.SchedulingDue(), lab.now + 101.0)) == {job.id}


@pytest.mark.parametrize("seconds", [None, 500.0])
def test_who_was_swapped_out_on_a_node_that_is_drained_comes_back_and_runs_to_its_end(seconds: float | None) -> None:
    lab = Lab(gpus=1)
    job, urgent = away(lab)
    lab.tell(e.NodeDrained(node=NodeId("a"), deadline=None if seconds is None else lab.now + seconds))
    waiting = lab.submit(1)
    lab.end(urgent, DONE)
    assert [resume.job for resume in orders(lab.last, Resume)] == [job.id]
    returned(lab, job)
    assert (job.state, waiting.attempts) == (JobState.RUNNING, [])
    lab.end(job, DONE)
    assert lab.cluster.state.nodes["a"].attempts == set()


@pytest.mark.parametrize("policy", list(POLICIES))
def test_under_every_policy_a_user_resumes_who_lies_in_the_memory_of_a_drained_node(policy: str) -> None:
    lab = Lab(policy, gpus=1)
    job = swapper(lab)
    lab.tell(e.SuspendRequested(job.id))
    swapped(lab, job)
    lab.tell(e.NodeDrained(node=NodeId("a")))
    assert [(found.job, found.outcome) for found in forecasts(lab)] == [(job, DrainOutcome.RUNS_OUT)]
    assert orders(lab.last, Resume) == []
    [resume] = orders(lab.tell(e.ResumeRequested(job.id)), Resume)
    assert resume.job == job.id


def test_of_two_that_were_swapped_out_from_one_gpu_of_a_drained_node_one_comes_back_at_a_time() -> None:
    lab = Lab(gpus=1)
    jobs = []
    for _ in range(2):
        jobs.append(swapper(lab))
        lab.tell(e.SuspendRequested(jobs[-1].id))
        swapped(lab, jobs[-1])
    lab.tell(e.NodeDrained(node=NodeId("a")))
    assert [resume.job for resume in orders(lab.tell(e.ResumeRequested(JobId("1"))), Resume)] == ["1"]
    assert orders(lab.tell(e.ResumeRequested(JobId("2"))), Resume) == []
    returned(lab, jobs[0])
    lab.end(jobs[0], DONE)
    assert [resume.job for resume in orders(lab.last, Resume)] == ["2"]


def test_the_more_urgent_of_those_in_the_memory_of_a_drained_node_comes_back_first() -> None:
    lab = Lab("priority", gpus=1, min_run_s="0")
    low = swapper(lab)
    high = lab.submit(1, priority=10, suspend=SuspendMode.SWAP)
    swapped(lab, low)
    lab.start(high)
    top = lab.submit(1, priority=5)
    swapped(lab, high)
    lab.start(top)
    lab.tell(e.NodeDrained(node=NodeId("a")))
    lab.end(top, DONE)
    assert [resume.job for resume in orders(lab.last, Resume)] == [high.id]


def test_under_tide_the_shorter_of_those_in_the_memory_of_a_drained_node_comes_back_first() -> None:
    lab = Lab("tide", gpus=1, min_run_s="0")
    jobs = []
    for work_s in (100_000.0, 60.0):
        jobs.append(swapper(lab, work_s=work_s))
        lab.tell(e.SuspendRequested(jobs[-1].id))
        swapped(lab, jobs[-1])
    last = lab.running(1, suspend=SuspendMode.NONE)
    for job in jobs:
        lab.tell(e.ResumeRequested(job.id))
    lab.tell(e.NodeDrained(node=NodeId("a")))
    lab.end(last, DONE)
    assert [resume.job for resume in orders(lab.last, Resume)] == [jobs[1].id]


@pytest.mark.parametrize("is_drained", [False, True])
def test_who_was_ordered_off_a_node_that_ends_is_not_called_back_while_it_is_killed(is_drained: bool) -> None:
    lab = Lab(nodes="")
    lab.tell(registration("a", 1, loan=Loan(5000.0, "ann")))
    job = swapper(lab, grace_s=100.0, time_limit_s=600.0)
    urgent = lab.submit(te=True, grace_s=100.0, time_limit_s=500.0)
    swapped(lab, job)
    lab.start(urgent)
    if is_drained:
        lab.tell(e.NodeDrained(node=NodeId("a")))
    lab.tell(e.LoanChanged(NodeId("a"), 130.0, "ann"))
    lab.wait(30.0)
    assert (stopping := job.attempts[-1].stop) is not None
    assert stopping.cause is StopCause.DRAINED
    lab.end(urgent, stepped_aside())
    assert orders(lab.last, Resume) == []
    assert job.attempts[-1].stop is stopping


def test_nobody_comes_back_to_a_drained_node_after_its_deadline_nor_beside_a_foreign_process() -> None:
    lab = Lab(gpus=1)
    job = swapper(lab)
    lab.tell(e.SuspendRequested(job.id))
    swapped(lab, job)
    lab.tell(use("a0", PYTHON))
    lab.tell(e.NodeDrained(node=NodeId("a"), deadline=lab.now + 100.0))
    assert orders(lab.tell(e.ResumeRequested(job.id)), Resume) == []
    lab.wait(100.0)
    assert orders(lab.tell(use("a0")), Resume) == []
    assert [resume.job for resume in orders(lab.tell(e.NodeDrained(node=NodeId("a"))), Resume)] == [job.id]


def forecasts(lab: Lab) -> list[DrainForecast]:
    return list(drain_forecasts(lab.cluster.state, lab.cluster.state.nodes["a"], lab.now))
