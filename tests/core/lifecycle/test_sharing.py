"""Jobs that share a GPU: what becomes of them when the MPS server fails through which they compute."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.model.types import CheckpointFacts, ExitFacts, JobState, Sharing
from ebbtide_core.views.narrate import narrate

from tests.core.lab import Lab

FAILURE = "the MPS server of GPU a0 failed (status FAULT)"
FAILED = ExitFacts(signal=9, killed=True, stop_requested=True, mps_failure=FAILURE)


@pytest.fixture
def lab():
    return Lab(gpus=1)


def test_who_computed_through_a_failed_mps_server_goes_on_and_is_not_charged(lab):
    job = lab.running("1/4")
    lab.end(job, FAILED)
    assert job.attempts[0].end.outcome == f"{FAILURE}; it resumes from its last checkpoint"
    assert (job.state, job.retries.failures, len(job.attempts)) == (JobState.STARTING, 0, 2)


def test_who_was_asked_to_leave_just_then_is_suspended(lab):
    job = lab.running("1/4")
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job, FAILED)
    assert job.state is JobState.SUSPENDED


def test_who_was_cancelled_just_then_stays_cancelled(lab):
    job = lab.running("1/4")
    lab.tell(e.CancelRequested(job.id))
    lab.end(job, FAILED)
    assert job.state is JobState.CANCELLED


def test_failures_of_the_server_do_not_hold_a_job_that_makes_checkpoints(lab):
    job = lab.running("1/4")
    for attempt in range(1, 6):
        lab.tell(e.CheckpointPublished(job.id, attempt, CheckpointFacts(attempt, 1, "/c", True)))
        lab.end(job, FAILED)
        lab.start(job)
    assert (job.state, job.retries.restarts) == (JobState.RUNNING, 5)


def test_its_story_says_that_the_server_failed(lab):
    job = lab.running("1/4")
    lab.end(job, FAILED)
    assert f"attempt 1 ended: signal SIGKILL ({FAILURE})" in [narrate(event) for _, event in job.story]


def test_an_attempt_says_how_it_shares_its_gpu(lab):
    job = lab.submit("1/4")
    lab.tell(e.AttemptStarted(job.id, 1, 4711, sharing=Sharing("mps", "driver")))
    assert job.attempts[-1].sharing == Sharing("mps", "driver")
