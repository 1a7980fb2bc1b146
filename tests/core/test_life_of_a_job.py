"""What users ask for, what nodes report, and the states that follow."""

from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, RefusalKind
from ebbtide_core.commands import Forget, Launch, Stop, WakeAt
from ebbtide_core.dispatch import apply
from ebbtide_core.job.job import InvalidTransitionError
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import (
    WHOLE,
    AttemptRef,
    Checkpoint,
    Checkpointed,
    ExitFacts,
    GpuId,
    HeldBy,
    JobId,
    JobState,
    NodeId,
    RefusalCause,
    StopCause,
    SuspendMode,
)
from ebbtide_core.nodes.draining import LEAVE_AT_ONCE
from ebbtide_core.nodes.quiescing import ASKED_AT_ONCE
from ebbtide_core.views.digest import digest

from tests.core.lab import DONE, Lab, gpus_of, launched, registration, stepped_aside, stopped, wake_times

FAILED = ExitFacts(exit_code=1)
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
        lab.tell(e.CheckpointPublished(job.id, 1, Checkpoint(5, 10, "/c", True)))
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
            assert (job.held_by, job.fruitless_suspensions) == (None, times)
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
            lab.tell(e.CheckpointPublished(job.id, number, Checkpoint(number, 10, "/c", True)))
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
        assert not first.returns
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
        assert (job.state, job.restarts) == (JobState.FAILED, 1)

    @pytest.mark.parametrize("code", [75, 85, 99])
    def test_asking_to_be_run_again_is_granted_after_a_growing_delay(self, lab: Lab, code: int) -> None:
        job = lab.running()
        for expected in (1.0, 2.0, 4.0):
            lab.exit(job, ExitFacts(exit_code=code))
            assert job.not_before == lab.now + expected
            lab.free(job)
            lab.wait(expected)
            lab.start(job)
        assert job.failures == 0

    def test_an_exit_during_a_suspension_is_not_charged_to_the_retries(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.SuspendRequested(job.id))
        lab.end(job, stepped_aside(exit_code=1, acknowledged=False))
        assert (job.state, job.failures) == (JobState.SUSPENDED, 0)

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
        lab.tell(e.CheckpointPublished(job.id, 1, Checkpoint(5, 10, "/c", True)))
        lab.tell(e.SuspendRequested(job.id))
        lab.tell(e.ResumeRequested(job.id))
        lab.end(job)
        launch = next(command for command in lab.last if isinstance(command, Launch))
        assert launch.needs_checkpoint


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

    def test_an_illegal_transition_raises_with_the_story_of_the_job(self, lab: Lab) -> None:
        job = lab.running()
        lab.end(job, DONE)
        job.ending = JobState.FAILED
        with pytest.raises(InvalidTransitionError, match="JobSubmitted"):
            apply(lab.cluster.state, e.HoldRequested(job.id), lab.now)


class TestNodes:
    def test_a_silent_node_makes_its_jobs_unreachable_and_nothing_is_started_elsewhere(self) -> None:
        lab = Lab(nodes="ab", gpus=1)
        job = lab.running()
        lab.tell(e.NodeDisconnected(NodeId("a")))
        lab.tell(e.NodeLost(NodeId("a"), 20.0))
        assert job.state is JobState.UNREACHABLE
        lab.wait(10_000)
        assert len(job.attempts) == 1
        lab.tell(registration("a", 1, known=lab.known(job)))
        assert job.state is JobState.RUNNING

    def test_a_reboot_proves_that_the_attempt_is_dead(self) -> None:
        lab = Lab(gpus=1)
        job = lab.running()
        lab.tell(registration("a", 1, boot_id="boot-2"))
        assert job.attempts[0].outcome.startswith("interrupted")
        assert job.state is JobState.STARTING
        assert len(job.attempts) == 2

    def test_an_order_that_never_arrived_is_repeated(self) -> None:
        lab = Lab(gpus=1)
        job = lab.submit()
        lab.tell(registration("a", 1))
        assert [(c.job, c.attempt) for c in lab.last if isinstance(c, Launch)] == [(job.id, 1)]

    def test_a_stop_that_may_not_have_arrived_is_repeated(self) -> None:
        lab = Lab(gpus=1)
        job = lab.running()
        lab.tell(e.SuspendRequested(job.id))
        lab.tell(registration("a", 1, known=lab.known(job)))
        assert stopped(lab.last) == {job.id}

    def test_a_stop_of_an_attempt_that_never_arrived_ends_it(self) -> None:
        lab = Lab(gpus=1)
        job = lab.submit()
        lab.tell(e.CancelRequested(job.id))
        lab.tell(registration("a", 1))
        assert job.state is JobState.CANCELLED
        assert job.holding is None

    def test_attempts_that_the_books_do_not_know_are_left_alone(self) -> None:
        lab = Lab(gpus=1)
        commands = lab.tell(registration("a", 1, known=(AttemptRef(JobId("77"), 1),)))
        assert not [command for command in commands if isinstance(command, Stop | Forget)]

    def test_a_gpu_whose_memory_is_not_released_is_not_used_again(self) -> None:
        lab = Lab(gpus=1)
        job = lab.running()
        lab.exit(job, DONE)
        lab.tell(e.AttemptFreed(job.id, 1, (GpuId("a0"),)))
        waiting = lab.submit()
        lab.tell(registration("a", 1))
        assert waiting.state is JobState.PENDING
        lab.tell(e.GpuHealthChanged(NodeId("a"), GpuId("a0"), True))
        assert waiting.state is JobState.STARTING

    def test_a_reboot_ends_a_quarantine(self) -> None:
        lab = Lab(gpus=1)
        job = lab.running()
        lab.exit(job, DONE)
        lab.tell(e.AttemptFreed(job.id, 1, (GpuId("a0"),)))
        lab.tell(registration("a", 1, boot_id="boot-2"))
        assert lab.submit().state is JobState.STARTING

    def test_a_job_resumes_only_where_its_checkpoint_can_be_read(self) -> None:
        lab = Lab(nodes="ab", gpus=1)
        job = lab.running()
        lab.tell(e.SuspendRequested(job.id))
        lab.end(job)
        blockers = {lab.running().attempts[0].allocation.node_ids[0]: id for id in ("2", "3")}
        lab.tell(e.ResumeRequested(job.id))
        lab.end(lab.cluster.state.jobs[JobId(blockers["b"])], DONE)
        assert job.state is JobState.SUSPENDED

    def test_with_a_shared_checkpoint_root_it_resumes_on_another_node(self) -> None:
        lab = Lab(nodes="")
        for name in "ab":
            lab.tell(registration(name, 1, checkpoint_root_id="shared"))
        job = lab.running()
        lab.tell(e.SuspendRequested(job.id))
        lab.end(job)
        blockers = {lab.running().attempts[0].allocation.node_ids[0]: id for id in ("2", "3")}
        lab.tell(e.ResumeRequested(job.id))
        lab.end(lab.cluster.state.jobs[JobId(blockers["b"])], DONE)
        assert job.attempts[1].allocation.node_ids == ("b",)


class TestTimeLimit:
    def test_running_time_of_all_attempts_counts(self, lab: Lab) -> None:
        job = lab.running(time_limit_s=100.0)
        lab.wait(60)
        lab.tell(e.SuspendRequested(job.id))
        lab.end(job)
        lab.wait(1000)
        lab.tell(e.ResumeRequested(job.id))
        lab.start(job)
        lab.wait(20)
        assert job.state is JobState.RUNNING
        lab.wait(30)
        assert job.state is JobState.STOPPING
        lab.end(job)
        assert (job.state, job.reason) == (JobState.FAILED, "time limit reached")


class TestMasterLife:
    def test_nothing_is_placed_before_the_nodes_with_attempts_were_heard_again(self) -> None:
        lab = Lab(nodes="ab", gpus=1)
        job = lab.running()
        lab.tell(e.MasterStarted(2))
        lab.tell(registration("b", 1))
        waiting = lab.submit()
        assert waiting.state is JobState.PENDING
        lab.tell(registration("a", 1, known=lab.known(job)))
        assert waiting.state is JobState.STARTING

    def test_after_the_recovery_grace_the_others_go_on(self) -> None:
        lab = Lab(nodes="ab", gpus=1)
        lab.running()
        lab.tell(e.MasterStarted(2))
        lab.tell(registration("b", 1))
        waiting = lab.submit()
        lab.wait(31)
        assert waiting.state is JobState.STARTING

    def test_a_quiesced_cluster_stops_everything_and_starts_nothing(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.Quiesced())
        assert stopped(lab.last) == {job.id}
        lab.end(job)
        later = lab.submit()
        assert {job.state, later.state} == {JobState.SUSPENDED, JobState.PENDING}
        lab.tell(e.Unquiesced())
        assert launched(lab.last) == {job.id, later.id}

    def test_of_very_many_some_are_stopped_at_a_time_and_others_have_their_turn_in_between(self, lab: Lab) -> None:
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

    def test_of_very_many_on_a_drained_node_some_leave_at_a_time(self, lab: Lab) -> None:
        jobs = [lab.running(0) for _ in range(2 * LEAVE_AT_ONCE + 1)]
        told = [lab.cluster.handle(e.NodeDrained(node=NodeId("a"), deadline=lab.now), lab.now)]
        while any(time <= lab.now for time in wake_times(told[-1])):
            told.append(lab.cluster.handle(e.SchedulingDue(), lab.now))
        assert [len(stopped(commands)) for commands in told if stopped(commands)] == [LEAVE_AT_ONCE, LEAVE_AT_ONCE, 1]
        assert all(job.live is not None and job.live.stop is not None for job in jobs)

    def test_who_is_to_leave_a_drained_node_leaves_whatever_else_happens_at_that_very_time(self, lab: Lab) -> None:
        job, later = lab.running(grace_s=10.0), lab.submit(begin_at=lab.now + 1000.0)
        lab.tell(e.NodeDrained(node=NodeId("a"), deadline=lab.now + 110.0))
        assert later.ticket is not None
        lab.cluster.handle(e.HoldRequested(later.id), lab.now + 101.0)  # before the pass that was asked for
        assert stopped(lab.cluster.handle(e.SchedulingDue(), lab.now + 101.0)) == {job.id}

    def test_a_job_that_is_being_cancelled_stays_so_when_the_cluster_goes_down_at_once(self, lab: Lab) -> None:
        job = lab.running()
        lab.tell(e.CancelRequested(job.id, now=False))
        lab.tell(e.Quiesced(kill=True))
        assert (stopped(lab.last), job.state) == ({job.id}, JobState.STOPPING)
        assert job.live is not None
        assert job.live.stop is not None
        assert (job.live.stop.cause, job.live.stop.grace_s) == (StopCause.CANCELLED, 0.0)
        lab.end(job)
        assert job.state is JobState.CANCELLED

    def test_replaying_the_journal_gives_the_same_cluster(self, lab: Lab) -> None:
        _eventful_day(lab)
        again = Cluster(lab.cluster.policy)
        for now, event in lab.journal:
            again.replay(event, now)
        assert again.state.jobs == lab.cluster.state.jobs
        assert _books(again) == _books(lab.cluster)
        assert digest(again.state) == digest(lab.cluster.state)

    def test_the_digest_changes_with_every_event_that_changes_a_job(self, lab: Lab) -> None:
        seen = {digest(lab.cluster.state)}
        job = lab.submit(1)
        for step in (lab.start, lab.exit, lab.free):
            seen.add(digest(lab.cluster.state))
            step(job)
        assert len(seen | {digest(lab.cluster.state)}) == 5


def test_impossible_jobs_are_refused_and_change_nothing(lab: Lab) -> None:
    spec = JobSpec(command=("x",), workdir="/", gpus_min=3 * WHOLE, gpus_max=3 * WHOLE)
    refusal = lab.cluster.refusal(e.JobSubmitted(JobId("1"), spec, "ann"))
    assert refusal is not None
    assert refusal.message == "--gpus: 3 is more than the 2 of the largest node"


def _eventful_day(lab: Lab) -> None:
    elastic = lab.running(1, 2)
    trial = lab.submit(1, te=True)
    lab.end(elastic)
    lab.start(elastic)
    lab.start(trial)
    lab.end(trial, DONE)
    failing = lab.submit(1, retries=2)
    lab.wait(100)
    lab.tell(e.SuspendRequested(elastic.id))
    lab.exit(elastic)
    lab.tell(e.CancelRequested(failing.id))


def _books(cluster: Cluster) -> dict[str, Any]:
    return {id: (node.held, node.promised, node.attempts, node.planned) for id, node in cluster.state.nodes.items()}
