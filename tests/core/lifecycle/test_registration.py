"""A node that comes back: what runs there, what is over, and what it is told once more."""

from ebbtide_core import events as e
from ebbtide_core.commands import Forget, Launch, Stop
from ebbtide_core.model.types import AttemptRef, GpuId, JobId, JobState, NodeId

from tests.core.lab import DONE, Lab, registration, stopped


def test_a_silent_node_makes_its_jobs_unreachable_and_nothing_is_started_elsewhere() -> None:
    lab = Lab(nodes="ab", gpus=1)
    job = lab.running()
    lab.tell(e.NodeDisconnected(NodeId("a")))
    lab.tell(e.NodeLost(NodeId("a"), 20.0))
    assert job.state is JobState.UNREACHABLE
    lab.wait(10_000)
    assert len(job.attempts) == 1
    lab.tell(registration("a", 1, known=lab.known(job)))
    assert job.state is JobState.RUNNING


def test_a_reboot_proves_that_the_attempt_is_dead() -> None:
    lab = Lab(gpus=1)
    job = lab.running()
    lab.tell(registration("a", 1, boot_id="boot-2"))
    assert job.attempts[0].end.outcome.startswith("interrupted")
    assert job.state is JobState.STARTING
    assert len(job.attempts) == 2


def test_an_order_that_never_arrived_is_repeated() -> None:
    lab = Lab(gpus=1)
    job = lab.submit()
    lab.tell(registration("a", 1))
    assert [(c.job, c.attempt) for c in lab.last if isinstance(c, Launch)] == [(job.id, 1)]


def test_a_stop_that_may_not_have_arrived_is_repeated() -> None:
    lab = Lab(gpus=1)
    job = lab.running()
    lab.tell(e.SuspendRequested(job.id))
    lab.tell(registration("a", 1, known=lab.known(job)))
    assert stopped(lab.last) == {job.id}


def test_a_stop_of_an_attempt_that_never_arrived_ends_it() -> None:
    lab = Lab(gpus=1)
    job = lab.submit()
    lab.tell(e.CancelRequested(job.id))
    lab.tell(registration("a", 1))
    assert job.state is JobState.CANCELLED
    assert job.holding is None


def test_attempts_that_the_books_do_not_know_are_left_alone() -> None:
    lab = Lab(gpus=1)
    commands = lab.tell(registration("a", 1, known=(AttemptRef(JobId("77"), 1),)))
    assert not [command for command in commands if isinstance(command, Stop | Forget)]


def test_a_gpu_whose_memory_is_not_released_is_not_used_again() -> None:
    lab = Lab(gpus=1)
    job = lab.running()
    lab.exit(job, DONE)
    lab.tell(e.AttemptFreed(job.id, 1, (GpuId("a0"),)))
    waiting = lab.submit()
    lab.tell(registration("a", 1))
    assert waiting.state is JobState.PENDING
    lab.tell(e.GpuHealthChanged(NodeId("a"), GpuId("a0"), True))
    assert waiting.state is JobState.STARTING


def test_a_reboot_ends_a_quarantine() -> None:
    lab = Lab(gpus=1)
    job = lab.running()
    lab.exit(job, DONE)
    lab.tell(e.AttemptFreed(job.id, 1, (GpuId("a0"),)))
    lab.tell(registration("a", 1, boot_id="boot-2"))
    assert lab.submit().state is JobState.STARTING


def test_a_job_resumes_only_where_its_checkpoint_can_be_read() -> None:
    lab = Lab(nodes="ab", gpus=1)
    job = lab.running()
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job)
    blockers = {lab.running().attempts[0].allocation.node_ids[0]: id for id in ("2", "3")}
    lab.tell(e.ResumeRequested(job.id))
    lab.end(lab.cluster.state.jobs[JobId(blockers["b"])], DONE)
    assert job.state is JobState.SUSPENDED


def test_with_a_shared_checkpoint_root_it_resumes_on_another_node() -> None:
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
