"""A wish, or an end, that races with a suspension: one outcome each, whichever comes first.

Cancel wins over suspend, suspend over preemption, a recorded end over all; and the job is signalled once.
"""

import pytest
from ebbtide_core import events as e
from ebbtide_core.commands import Stop
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, ExitFacts, HeldBy, JobState, NodeId

from tests.core.lab import DONE, Lab, launched, registration, stepped_aside

FINISHED = ExitFacts(exit_code=0, stop_requested=True, delivered=False)


@pytest.fixture
def lab() -> Lab:
    return Lab(gpus=2)


def suspend(job: Job) -> e.Event:
    return e.SuspendRequested(job.id)


def resize(job: Job, gpus: int = 2) -> e.Event:
    return e.ResizeRequested(job.id, gpus * WHOLE, gpus * WHOLE)


def preempted(lab: Lab) -> tuple[Job, Job]:
    """A job that is asked to leave for another one."""
    victim = lab.running(2)
    urgent = lab.submit(1, te=True)
    assert victim.state is JobState.SUSPENDING
    return victim, urgent


def stops(lab: Lab) -> list[Stop]:
    return [command for command in lab.last if isinstance(command, Stop)]


def test_who_is_suspended_while_preempted_stays_away_and_is_not_signalled_again(lab: Lab) -> None:
    victim, urgent = preempted(lab)
    lab.tell(suspend(victim))
    assert stops(lab) == []
    lab.end(victim)
    lab.start(urgent)
    lab.end(urgent, DONE)
    assert (victim.state, victim.held_by, len(victim.attempts)) == (JobState.SUSPENDED, HeldBy.USER, 1)


def test_who_is_resized_while_preempted_comes_back_with_its_new_size(lab: Lab) -> None:
    victim, urgent = preempted(lab)
    lab.tell(resize(victim, 1))
    assert stops(lab) == []
    lab.end(victim)
    assert (victim.state, victim.attempts[-1].allocation.share) == (JobState.STARTING, WHOLE)
    assert urgent.state is JobState.STARTING


def test_who_is_resized_while_suspended_stays_away_and_has_its_new_size_later(lab: Lab) -> None:
    job = lab.running()
    lab.tell(suspend(job))
    lab.tell(resize(job))
    assert stops(lab) == []
    lab.end(job)
    assert (job.state, job.held_by) == (JobState.SUSPENDED, HeldBy.USER)
    lab.tell(e.ResumeRequested(job.id))
    assert job.attempts[-1].allocation.share == 2 * WHOLE


def test_who_is_suspended_while_resized_stays_away_and_has_its_new_size_later(lab: Lab) -> None:
    job = lab.running()
    lab.tell(resize(job))
    lab.tell(suspend(job))
    assert stops(lab) == []
    lab.end(job)
    assert (job.state, job.held_by) == (JobState.SUSPENDED, HeldBy.USER)
    lab.tell(e.ResumeRequested(job.id))
    assert job.attempts[-1].allocation.share == 2 * WHOLE


def test_of_two_resizes_the_later_one_counts_and_the_job_is_signalled_once(lab: Lab) -> None:
    job = lab.running()
    lab.tell(resize(job, 2))
    assert len(stops(lab)) == 1
    lab.tell(resize(job, 1))
    assert stops(lab) == []
    lab.end(job)
    assert (job.state, job.attempts[-1].allocation.share) == (JobState.STARTING, WHOLE)


@pytest.mark.parametrize("wish", [suspend, resize], ids=["suspend", "resize"])
class TestWhateverWasWished:
    def test_cancel_wins(self, lab: Lab, wish) -> None:
        job = lab.running()
        lab.tell(wish(job))
        lab.tell(e.CancelRequested(job.id))
        assert job.state is JobState.STOPPING
        lab.end(job)
        assert job.state is JobState.CANCELLED

    def test_a_job_that_had_finished_is_completed(self, lab: Lab, wish) -> None:
        job = lab.running()
        lab.tell(wish(job))
        lab.end(job, FINISHED)
        assert (job.state, len(job.attempts)) == (JobState.COMPLETED, 1)

    def test_what_comes_after_the_end_is_refused(self, lab: Lab, wish) -> None:
        job = lab.running()
        lab.tell(wish(job))
        lab.end(job, FINISHED)
        assert lab.cluster.refusal(wish(job)) is not None

    def test_a_job_that_failed_before_the_signal_reached_it_fails_no_retry(self, lab: Lab, wish) -> None:
        """It was asked to leave, so nothing that follows is charged to its retries."""
        job = lab.running()
        lab.tell(wish(job))
        lab.end(job, stepped_aside(exit_code=1, acknowledged=False, delivered=False, caught=False))
        assert job.retries.failures == 0
        assert not job.state.finished

    def test_a_failure_that_the_supervisor_saw_before_the_request_counts_as_one(self, lab: Lab, wish) -> None:
        job = lab.running()
        lab.tell(wish(job))
        lab.end(job, ExitFacts(exit_code=1))
        assert job.state is JobState.FAILED


def test_who_is_resized_while_their_node_is_silent_changes_when_it_is_heard_again_and_nowhere_else(lab: Lab) -> None:
    job = lab.running(2)
    lab.tell(registration("b", 4))
    lab.tell(e.NodeLost(NodeId("a"), 20.0))
    assert job.state is JobState.UNREACHABLE
    lab.tell(resize(job, 1))
    assert launched(lab.last) == set()
    lab.tell(registration("a", 2, known=lab.known(job)))
    lab.settle()
    assert [attempt.allocation.share for attempt in job.attempts] == [2 * WHOLE, WHOLE]
    assert job.attempts[0].freed is not None
