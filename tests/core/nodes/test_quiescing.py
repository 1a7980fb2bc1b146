"""A cluster that goes down stops its jobs, and starts none."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.commands import WakeAt
from ebbtide_core.model.types import JobState, StopCause
from ebbtide_core.nodes.quiescing import ASKED_AT_ONCE

from tests.core.lab import DONE, Lab, launched, stopped


@pytest.fixture
def lab() -> Lab:
    return Lab(gpus=2)


def test_a_quiesced_cluster_stops_everything_and_starts_nothing(lab: Lab) -> None:
    job = lab.running()
    lab.tell(e.Quiesced())
    assert stopped(lab.last) == {job.id}
    lab.end(job)
    later = lab.submit()
    assert {job.state, later.state} == {JobState.SUSPENDED, JobState.PENDING}
    lab.tell(e.Unquiesced())
    assert launched(lab.last) == {job.id, later.id}


def test_of_very_many_some_are_stopped_at_a_time_and_others_have_their_turn_in_between(lab: Lab) -> None:
    jobs = [lab.running(0) for _ in range(2 * ASKED_AT_ONCE + 1)]
    first, now = lab.cluster.handle(e.Quiesced(), lab.now), lab.now
    assert stopped(first) == {job.id for job in jobs[:ASKED_AT_ONCE]}
    assert WakeAt(now) in first
    second = lab.cluster.handle(e.AttemptExited(jobs[-1].id, 1, DONE, freed=True), now)
    assert stopped(second) == {job.id for job in jobs[ASKED_AT_ONCE:-1]}
    assert stopped(lab.cluster.handle(e.SchedulingDue(), now)) == set()
    assert not lab.cluster.state.leaving
    assert all(job.live is not None and job.live.stop is not None for job in jobs[:-1])
    assert jobs[-1].state is JobState.COMPLETED
    assert WakeAt(now) not in lab.cluster.handle(e.SchedulingDue(), now)


def test_a_job_that_is_being_cancelled_stays_so_when_the_cluster_goes_down_at_once(lab: Lab) -> None:
    job = lab.running()
    lab.tell(e.CancelRequested(job.id, now=False))
    lab.tell(e.Quiesced(kill=True))
    assert (stopped(lab.last), job.state) == ({job.id}, JobState.STOPPING)
    assert job.live is not None
    assert job.live.stop is not None
    assert (job.live.stop.cause, job.live.stop.grace_s) == (StopCause.CANCELLED, 0.0)
    lab.end(job)
    assert job.state is JobState.CANCELLED
