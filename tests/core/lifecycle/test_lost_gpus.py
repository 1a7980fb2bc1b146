"""A GPU is lost under a job, or is dirty after it: who is stopped, who is charged, and what is said."""

import dataclasses

import pytest
from ebbtide_core import events as e
from ebbtide_core.commands import Stop
from ebbtide_core.job.outcome import Ending, read_exit
from ebbtide_core.model.types import (
    CheckpointFacts,
    ExitFacts,
    GpuId,
    HeldBy,
    JobState,
    NodeId,
    StopCause,
    SuspendMode,
)
from ebbtide_core.views.narrate import narrate

from tests.core.lab import GIB, Lab, gpus_of, registration, stepped_aside, stopped

LOST = "Xid 79: the GPU has fallen off the bus"


def loses(lab, gpu, gone=True, node="a", reason=LOST):
    return lab.tell(e.GpuHealthChanged(NodeId(node), GpuId(gpu), False, reason, gone))


@pytest.fixture
def lab():
    lab = Lab(nodes="")
    for name in "ab":
        lab.tell(registration(name, 2, checkpoint_root_id="shared"))
    return lab


def test_the_job_on_a_lost_gpu_ends_with_a_short_grace_and_goes_on_elsewhere_and_others_do_not_notice(lab):
    job, other = lab.running(retries=0), lab.running()
    assert (gpus_of(job), gpus_of(other)) == ({"a0"}, {"a1"})
    lab.tell(e.CheckpointPublished(job.id, 1, CheckpointFacts(7, 1, "/c/7", True)))
    [stop] = [command for command in loses(lab, "a0") if isinstance(command, Stop)]
    assert (stop.job, stop.grace_s) == (job.id, 30.0)
    assert (job.state, job.reason) == (JobState.SUSPENDING, f"GPU a0 of node a is lost: {LOST}")
    lab.end(job, ExitFacts(signal=9, killed=True, stop_requested=True, delivered=True))
    assert job.state is JobState.STARTING
    assert gpus_of(job) == {"b0"}
    assert (job.retries.failures, job.retries.restarts, job.suspending.preemptions) == (0, 1, 0)
    assert other.state is JobState.RUNNING


def test_a_shorter_grace_period_stays_as_short(lab):
    lab.running(grace_s=3.0)
    [stop] = [command for command in loses(lab, "a0") if isinstance(command, Stop)]
    assert stop.grace_s == 3.0


def test_a_gpu_that_only_fails_to_answer_stops_nobody(lab):
    job = lab.running()
    assert stopped(loses(lab, "a0", gone=False, reason="NVML does not answer")) == set()
    assert job.state is JobState.RUNNING
    assert stopped(loses(lab, "a0")) == {job.id}


def test_to_hear_it_again_changes_nothing(lab):
    job = lab.running()
    loses(lab, "a0")
    assert stopped(loses(lab, "a0")) == set()
    assert len(job.suspensions) == 1


def test_all_jobs_of_a_shared_gpu_are_stopped_and_nobody_is_placed_on_it(lab):
    jobs = [lab.running("1/4") for _ in range(3)]
    assert {gpu for job in jobs for gpu in gpus_of(job)} == {"a0"}
    assert stopped(loses(lab, "a0")) == {job.id for job in jobs}
    for job in jobs:
        lab.end(job)
    assert all("a0" not in gpus_of(job) for job in jobs)


def test_a_job_of_several_gpus_is_stopped_as_a_whole(lab):
    job = lab.running(2)
    assert stopped(loses(lab, "a1")) == {job.id}
    lab.end(job)
    assert gpus_of(job) == {"b0", "b1"}


def test_whoever_is_asked_to_stop_already_keeps_the_grace_that_it_was_promised(lab):
    job = lab.running()
    lab.tell(e.SuspendRequested(job.id))
    assert stopped(loses(lab, "a0")) == set()
    assert job.attempts[-1].stop.cause is StopCause.SUSPENDED


def test_the_memory_of_a_swapped_job_is_lost_with_its_gpu_and_it_starts_again_elsewhere():
    lab = Lab(gpus=1)
    job = lab.running(suspend=SuspendMode.SWAP)
    urgent = lab.submit(te=True)
    lab.tell(e.AttemptSwapped(job.id, 1, 1, GIB, 1.0))
    lab.start(urgent)
    assert stopped(loses(lab, "a0")) == {job.id, urgent.id}
    assert stopped(loses(lab, "a0")) == set()
    lab.end(job, ExitFacts(signal=9, killed=True, stop_requested=True))
    lab.tell(registration("b", 1, checkpoint_root_id="root-a"))
    lab.end(urgent)
    assert {*gpus_of(job), *gpus_of(urgent)} == {"b0"}
    assert job.retries.failures == 0


def test_a_gpu_that_its_node_does_not_have_any_more_is_lost(lab):
    job, other = lab.running(), lab.running()
    known = lab.known(job) + lab.known(other)
    again = registration("a", 2, checkpoint_root_id="shared", known=known)
    assert stopped(lab.tell(again)) == set()
    assert stopped(lab.tell(dataclasses.replace(again, gpus=()))) == set()  # it has no driver to ask now
    assert stopped(lab.tell(dataclasses.replace(again, gpus=again.gpus[1:]))) == {job.id}
    assert job.reason == "GPU a0 of node a is lost: its node does not have it any more"
    assert other.state is JobState.RUNNING


def test_a_job_that_fails_because_its_gpu_was_lost_is_not_charged(lab):
    job = lab.running(retries=0)
    lab.end(job, ExitFacts(exit_code=1, lost_gpu="a0"))
    assert (job.state, job.retries.failures) == (JobState.STARTING, 0)
    assert job.attempts[0].end.outcome == "interrupted: its GPU was lost (exit code 1)"


def test_a_job_that_loses_gpus_again_and_again_without_saving_is_held(lab):
    job = lab.running()
    for _ in range(3):
        lab.end(job, ExitFacts(exit_code=1, lost_gpu="a0"))
        if job.held_by is None:
            lab.start(job)
    assert job.held_by is HeldBy.SYSTEM


@pytest.mark.parametrize(
    ("exit", "cause", "ending"),
    [
        (ExitFacts(exit_code=1), None, Ending.FAILED),
        (ExitFacts(exit_code=1, lost_gpu="a0"), None, Ending.INTERRUPTED),
        (ExitFacts(exit_code=0, lost_gpu="a0"), None, Ending.COMPLETED),
        (ExitFacts(exit_code=75, lost_gpu="a0"), None, Ending.INTERRUPTED),
        (ExitFacts(exit_code=1), StopCause.LOST_GPU, Ending.INTERRUPTED),
        (ExitFacts(exit_code=1, stop_requested=True, delivered=True), StopCause.LOST_GPU, Ending.INTERRUPTED),
        (stepped_aside(), StopCause.LOST_GPU, Ending.INTERRUPTED),
        (ExitFacts(stop_requested=True), StopCause.LOST_GPU, Ending.COMPLETED),
        (ExitFacts(exit_code=1, lost_gpu="a0", stop_requested=True), StopCause.CANCELLED, Ending.CANCELLED),
    ],
)  # fmt: skip
def test_how_an_end_with_a_lost_gpu_is_read(lab, exit, cause, ending):
    assert read_exit(exit, lab.submit().spec, cause).ending is ending


def test_why_a_gpu_is_dirty_is_in_its_reason_and_in_the_story_and_it_ends_with_an_event(lab):
    job = lab.running()
    lab.exit(job, ExitFacts())
    freed = e.AttemptFreed(job.id, 1, (GpuId("a0"),), dirty_reasons=("its process 7 does not end",))
    lab.tell(freed)
    facts = lab.cluster.state.nodes["a"].gpus["a0"]
    assert (facts.healthy, facts.unhealthy_reason) == (False, "job 1 ended, but its process 7 does not end")
    assert narrate(freed) == "what attempt 1 held is free; not a0: its process 7 does not end"
    lab.tell(e.GpuHealthChanged(NodeId("a"), GpuId("a0"), True))
    assert lab.cluster.state.nodes["a"].quarantine == {}


def test_a_journal_of_before_gives_no_reason_and_the_reason_is_as_it_was(lab):
    job = lab.running()
    lab.exit(job, ExitFacts())
    lab.tell(e.AttemptFreed(job.id, 1, (GpuId("a0"),)))
    reason = lab.cluster.state.nodes["a"].quarantine["a0"]
    assert reason == "job 1 ended, but its memory was not released"
