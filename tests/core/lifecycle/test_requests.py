"""What users ask of a job: to suspend and resume it, to hold and release it, and to cancel it."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import RefusalKind
from ebbtide_core.commands import Stop
from ebbtide_core.model.types import (
    WHOLE,
    Checkpointed,
    CheckpointFacts,
    ExitFacts,
    HeldBy,
    JobState,
    RefusalCause,
    SuspendMode,
)

from tests.core.lab import DONE, Lab, stepped_aside

KILLED = stepped_aside(exit_code=0, signal=9, killed=True, acknowledged=False)


@pytest.fixture
def lab() -> Lab:
    return Lab(gpus=2)


class TestSuspendAndResume:
    def test_a_suspended_job_stays_so_until_the_user_resumes_it(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.SuspendRequested(job.id))
        assert job.state is JobState.SUSPENDING
        lab.end(job)
        assert (job.state, job.held_by) == (JobState.SUSPENDED, HeldBy.USER)
        lab.tell(e.ResumeRequested(job.id))
        assert job.state is JobState.STARTING
        assert len(job.attempts) == 2

    def test_a_second_suspend_sends_no_second_signal(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.SuspendRequested(job.id))
        lab.tell(e.SuspendRequested(job.id))
        assert not [command for command in lab.last if isinstance(command, Stop)]

    def test_a_resume_during_the_grace_period_lets_it_come_back(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.SuspendRequested(job.id))
        lab.tell(e.ResumeRequested(job.id))
        lab.end(job)
        assert job.state is JobState.STARTING

    def test_the_times_of_a_suspension_are_recorded(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.SuspendRequested(job.id))
        requested = lab.now
        lab.exit(job)
        exited = lab.now
        lab.free(job)
        lab.tell(e.ResumeRequested(job.id))
        lab.start(job)
        suspension = job.suspensions[0]
        freed = exited + 1
        assert (suspension.requested, suspension.exited, suspension.gpu_free) == (requested, exited, freed)
        assert suspension.resumed == lab.now

    @pytest.mark.parametrize(("checkpointed", "size"), [(Checkpointed.YES, 10), (Checkpointed.NO, None)])
    def test_what_a_suspension_saved_is_recorded_with_its_size(
        self, lab: Lab, checkpointed: Checkpointed, size: int | None
    ) -> None:
        job = lab.running()
        lab.tell(e.SuspendRequested(job.id))
        lab.tell(e.CheckpointPublished(job.id, 1, CheckpointFacts(5, 10, "/c", True)))
        lab.exit(job, stepped_aside(checkpointed=checkpointed, checkpoint_s=1.5))
        assert (job.suspensions[0].checkpoint_s, job.suspensions[0].checkpoint_bytes) == (1.5, size)

    def test_a_job_with_suspend_none_refuses_to_be_suspended(self, lab: Lab) -> None:
        job = lab.running(suspend=SuspendMode.NONE)
        refusal = lab.cluster.refusal(e.SuspendRequested(job.id))
        assert refusal is not None
        assert refusal.kind is RefusalKind.CONFLICT

    def test_a_job_that_was_killed_three_times_without_saving_is_held(self, lab: Lab) -> None:
        job = lab.running(2)
        for times in range(3):
            assert (job.held_by, job.suspending.fruitless_in_row) == (None, times)
            trial = lab.submit(1, te=True)
            lab.end(job, KILLED)
            lab.start(trial)
            lab.end(trial, DONE)
            if times < 2:
                lab.start(job)
                lab.wait(601)
        assert job.held_by is HeldBy.SYSTEM
        assert "3 times in a row without saving" in job.reason

    def test_a_checkpoint_in_between_keeps_it_from_being_held(self, lab: Lab) -> None:
        job = lab.running()
        for number in range(1, 6):
            lab.tell(e.CheckpointPublished(job.id, number, CheckpointFacts(number, 10, "/c", True)))
            lab.tell(e.SuspendRequested(job.id))
            lab.tell(e.ResumeRequested(job.id))
            lab.end(job, KILLED)
            lab.start(job)
        assert job.held_by is None

    def test_a_job_with_suspend_none_is_not_resized_while_it_runs(self, lab: Lab) -> None:
        job = lab.running(suspend=SuspendMode.NONE)
        refusal = lab.cluster.refusal(e.ResizeRequested(job.id, 2 * WHOLE, 2 * WHOLE))
        assert refusal is not None
        assert refusal.kind is RefusalKind.CONFLICT

    def test_who_was_suspended_by_their_user_does_not_jump_the_queue(self, lab: Lab) -> None:
        lab.running(2, suspend=SuspendMode.NONE)
        first, second = lab.submit(2), lab.submit(2)
        assert not first.next.at_head
        lab.tell(e.SuspendRequested(first.id))
        lab.tell(e.ResumeRequested(first.id))
        assert [job.id for job in lab.cluster.state.pools["default"].queue] == [first.id, second.id]


class TestHoldAndRelease:
    def test_a_held_job_waits_for_its_user(self, lab: Lab) -> None:
        job = lab.submit(hold=True)
        assert (job.state, job.reason) == (JobState.PENDING, "held by user")
        lab.tell(e.ReleaseRequested(job.id))
        assert job.state is JobState.STARTING

    def test_hold_does_not_stop_a_running_job(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.HoldRequested(job.id))
        assert job.state is JobState.RUNNING

    def test_who_is_held_while_it_runs_keeps_its_size_until_it_is_released(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.HoldRequested(job.id))
        lab.tell(e.ResizeRequested(job.id, 2 * WHOLE, 2 * WHOLE))
        assert job.state is JobState.RUNNING  # it would step aside, and not come back
        lab.tell(e.ReleaseRequested(job.id))
        assert job.state is JobState.SUSPENDING


class TestCancel:
    def test_a_waiting_job_is_gone_at_once(self, lab: Lab) -> None:
        job = lab.submit(hold=True)
        lab.tell(e.CancelRequested(job.id))
        assert job.state is JobState.CANCELLED

    def test_a_running_job_gets_its_grace_period(self, lab: Lab) -> None:
        job = lab.running(grace_s=7.0)
        lab.tell(e.CancelRequested(job.id))
        assert [c.grace_s for c in lab.last if isinstance(c, Stop)] == [7.0]
        assert job.state is JobState.STOPPING
        lab.end(job)
        assert job.state is JobState.CANCELLED

    def test_cancel_wins_over_a_suspend_that_is_under_way(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.SuspendRequested(job.id))
        lab.tell(e.CancelRequested(job.id))
        lab.end(job)
        assert job.state is JobState.CANCELLED

    def test_a_job_that_ends_by_itself_before_the_cancel_arrives_is_not_run_again(self, lab: Lab) -> None:
        job = lab.running(retries=3)
        lab.tell(e.CancelRequested(job.id))
        lab.end(job, ExitFacts(exit_code=85))
        assert job.state is JobState.CANCELLED

    def test_an_exit_that_was_recorded_wins_over_cancel(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.CancelRequested(job.id))
        lab.end(job, ExitFacts(exit_code=0, stop_requested=True, delivered=False))
        assert job.state is JobState.COMPLETED

    def test_a_job_cancelled_before_it_was_seen_to_start_is_cancelled(self, lab: Lab) -> None:
        job = lab.submit()
        lab.tell(e.CancelRequested(job.id))
        lab.tell(e.AttemptRefused(job.id, 1, RefusalCause.NODE, "too late"))
        assert job.state is JobState.CANCELLED
