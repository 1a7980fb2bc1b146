"""How attempts end, what that means for their jobs, and which reports of an end still count."""

from dataclasses import replace

import pytest
from ebbtide_core import events as e
from ebbtide_core.commands import Forget, Launch
from ebbtide_core.job.facets import NO_RETRIES
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import (
    CheckpointFacts,
    ExitFacts,
    HeldBy,
    JobId,
    JobState,
    NodeId,
    RefusalCause,
    SuspendMode,
)

from tests.core.lab import DONE, Lab, gpus_of, launched, stepped_aside

FAILED = ExitFacts(exit_code=1)


@pytest.fixture
def lab() -> Lab:
    return Lab(gpus=2)


class TestExits:
    @pytest.mark.parametrize(
        ("exit", "state", "code"),
        [
            (ExitFacts(exit_code=0), JobState.COMPLETED, 0),
            (ExitFacts(exit_code=3), JobState.FAILED, 3),
            (ExitFacts(signal=11), JobState.FAILED, 139),
            (ExitFacts(exit_code=143), JobState.FAILED, 143),
        ],
    )
    def test_without_a_request_only_zero_is_success(
        self, lab: Lab, exit: ExitFacts, state: JobState, code: int
    ) -> None:
        job = lab.running()
        lab.end(job, exit)
        assert (job.state, job.exit_code) == (state, code)

    def test_a_failed_attempt_is_retried_as_often_as_the_user_allowed(self, lab: Lab) -> None:
        job = lab.running(retries=1)
        lab.exit(job, FAILED)
        assert job.state is JobState.PENDING
        lab.free(job)
        lab.wait(1)
        assert job.state is JobState.STARTING
        lab.start(job)
        lab.end(job, FAILED)
        assert (job.state, job.retries.restarts) == (JobState.FAILED, 1)

    def test_a_delay_stays_at_its_longest_however_often_it_is_asked_for(self, lab: Lab) -> None:
        job = lab.running()
        job.retries = replace(job.retries, requeues_in_row=5_000)  # after three days and a half
        lab.exit(job, ExitFacts(exit_code=85))
        assert job.next.not_before == lab.now + 60.0

    @pytest.mark.parametrize("code", [75, 85, 99])
    def test_asking_to_be_run_again_is_granted_after_a_growing_delay(self, lab: Lab, code: int) -> None:
        job = lab.running()
        for expected in (1.0, 2.0, 4.0):
            lab.exit(job, ExitFacts(exit_code=code))
            assert job.next.not_before == lab.now + expected
            lab.free(job)
            lab.wait(expected)
            lab.start(job)
        assert job.retries.failures == 0

    def test_an_exit_during_a_suspension_is_not_charged_to_the_retries(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.SuspendRequested(job.id))
        lab.end(job, stepped_aside(exit_code=1, acknowledged=False))
        assert (job.state, job.retries.failures) == (JobState.SUSPENDED, 0)

    def test_an_unknown_exit_is_never_a_success(self, lab: Lab) -> None:
        job = lab.running()
        lab.exit(job, ExitFacts(lost=True))
        assert job.state is JobState.SUSPENDED
        assert job.exit_code is None
        assert "not recorded" in job.reason


class TestRefusals:
    def test_a_job_that_can_start_nowhere_fails_with_the_nodes_reason(self, lab: Lab) -> None:
        job = lab.submit()
        lab.tell(e.AttemptRefused(job.id, 1, RefusalCause.BAD_JOB, "command not found: trian.py"))
        assert (job.state, job.reason) == (JobState.FAILED, "command not found: trian.py")

    def test_a_job_whose_checkpoints_are_broken_is_held_instead_of_restarted(self, lab: Lab) -> None:
        job = lab.submit()
        lab.tell(e.AttemptRefused(job.id, 1, RefusalCause.NO_CHECKPOINT, "no checkpoint verifies"))
        assert job.held_by is HeldBy.SYSTEM
        assert launched(lab.last) == set()

    def test_a_job_that_had_a_checkpoint_asks_for_one(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.CheckpointPublished(job.id, 1, CheckpointFacts(5, 10, "/c", True)))
        lab.tell(e.SuspendRequested(job.id))
        lab.tell(e.ResumeRequested(job.id))
        lab.end(job)
        launch = next(command for command in lab.last if isinstance(command, Launch))
        assert launch.needs_checkpoint


class TestStoppedBeforeItRan:
    """An agent answers a request to leave that comes while it prepares a launch with a refusal."""

    def stopped(self, lab: Lab, job: Job) -> None:
        lab.tell(e.AttemptRefused(job.id, len(job.attempts), RefusalCause.STOPPED, "it was asked to stop before"))

    def test_no_launch_has_failed_however_often_it_has_to_leave(self) -> None:
        lab = Lab(gpus=1)
        job = lab.submit()
        for _ in range(4):
            urgent = lab.submit(te=True)
            assert job.state is JobState.SUSPENDING
            self.stopped(lab, job)
            lab.start(urgent)
            lab.end(urgent, DONE)
            assert job.state is JobState.STARTING
        assert (job.retries, job.next.not_before, job.eligibility.excluded) == (NO_RETRIES, 0.0, frozenset())

    def test_who_was_suspended_says_by_whom(self, lab: Lab) -> None:
        job = lab.submit()
        lab.tell(e.SuspendRequested(job.id))
        self.stopped(lab, job)
        assert (job.state, job.held_by, job.reason) == (JobState.PENDING, HeldBy.USER, "suspended by user")
        lab.tell(e.ResumeRequested(job.id))
        assert job.state is JobState.STARTING

    def test_who_cannot_leave_a_drained_node_has_failed_for_that_reason(self, lab: Lab) -> None:
        job = lab.submit(suspend=SuspendMode.NONE, grace_s=5.0)
        lab.tell(e.NodeDrained(node=NodeId("a"), reason="new GPUs", deadline=lab.now, force=True))
        self.stopped(lab, job)
        assert job.state is JobState.FAILED
        assert job.reason == "node a is drained: new GPUs, and it cannot go on elsewhere"

    def test_who_is_to_end_ends_for_that_reason_though_the_node_refuses_it_for_another(self, lab: Lab) -> None:
        job = lab.submit(suspend=SuspendMode.NONE, grace_s=5.0, retries=1)
        lab.tell(e.NodeDrained(node=NodeId("a"), reason="new GPUs", deadline=lab.now, force=True))
        lab.tell(e.AttemptRefused(job.id, 1, RefusalCause.NODE, "the disk is full"))
        assert job.state is JobState.FAILED
        assert job.reason == "node a is drained: new GPUs, and it cannot go on elsewhere"

    def test_who_was_cancelled_is_cancelled(self, lab: Lab) -> None:
        job = lab.submit()
        lab.tell(e.CancelRequested(job.id))
        self.stopped(lab, job)
        assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled by user")


class TestFencing:
    def test_a_late_report_of_an_older_attempt_changes_nothing(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.SuspendRequested(job.id))
        lab.tell(e.ResumeRequested(job.id))
        lab.end(job)
        lab.start(job)
        before = len(lab.journal)
        lab.tell(e.AttemptExited(job.id, 1, FAILED))
        assert job.state is JobState.RUNNING
        assert len(lab.journal) == before

    def test_a_node_that_reports_an_end_twice_is_told_again_to_forget_it(self, lab: Lab) -> None:
        job = lab.running()
        lab.end(job, DONE)
        lab.tell(e.AttemptFreed(job.id, 1))
        assert lab.last == [Forget((NodeId("a"),), job.id, 1)]

    def test_an_end_that_frees_its_gpus_at_once_needs_no_second_report(self) -> None:
        lab = Lab(gpus=1)
        job, after = lab.running(), lab.submit()
        lab.tell(e.AttemptExited(job.id, 1, DONE, freed=True))
        assert job.holding is None
        assert gpus_of(after) == {"a0"}
        assert Forget((NodeId("a"),), job.id, 1) in lab.last

    def test_a_report_about_an_unknown_job_changes_nothing(self, lab: Lab) -> None:
        assert lab.tell(e.AttemptExited(JobId("99"), 1, FAILED)) == []
