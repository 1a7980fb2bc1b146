"""What a job is for: what a session may be, and how its end is read."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.job.outcome import Ending, read_exit
from ebbtide_core.model.spec import JobSpec, SpecError, validate
from ebbtide_core.model.types import Checkpointed, ExitFacts, JobKind, LaunchMode, StopCause, SuspendMode
from ebbtide_core.views.narrate import narrate

from tests.core.lab import Lab, stopped


def spec(kind: JobKind, **fields) -> JobSpec:
    return JobSpec(**({"command": ("sh",), "workdir": "/", "kind": kind, "suspend": SuspendMode.NONE} | fields))


def ending(kind: JobKind, cause: StopCause | None = None, **facts) -> Ending:
    exit = ExitFacts(stop_requested=cause is not None, checkpointed=Checkpointed.NO, **facts)
    return read_exit(exit, spec(kind), cause).ending


@pytest.mark.parametrize("kind", [JobKind.SHELL, JobKind.NOTEBOOK, JobKind.TENSORBOARD])
def test_a_session_is_one_process_that_cannot_step_aside(kind):
    validate(spec(kind))
    with pytest.raises(SpecError, match=f"--suspend: a {kind.value} cannot step aside"):
        validate(spec(kind, suspend=SuspendMode.CHECKPOINT))
    with pytest.raises(SpecError, match="is one process on one node"):
        validate(spec(kind, launch=LaunchMode.DDP))
    with pytest.raises(SpecError, match="is one process on one node"):
        validate(spec(kind, nodes=2, gpus_min=2 * 720_720, gpus_max=2 * 720_720))


def test_an_idle_limit_is_a_time():
    with pytest.raises(SpecError, match="--idle: 0s is not between 1s"):
        validate(spec(JobKind.SHELL, idle_limit_s=0))


def test_a_shell_that_its_user_leaves_is_completed_whatever_its_exit_code():
    assert ending(JobKind.SHELL, exit_code=1) is Ending.COMPLETED
    assert ending(JobKind.SHELL, exit_code=75) is Ending.COMPLETED
    assert ending(JobKind.SHELL, exit_code=0, signal=9) is Ending.FAILED
    assert ending(JobKind.NOTEBOOK, exit_code=75) is Ending.FAILED
    assert ending(JobKind.COMMAND, exit_code=1) is Ending.FAILED


def test_a_session_that_is_lost_or_stopped_never_begins_anew():
    assert ending(JobKind.SHELL, exit_code=0, lost=True) is Ending.EXPELLED
    assert ending(JobKind.NOTEBOOK, StopCause.QUIESCED, exit_code=0) is Ending.EXPELLED
    assert ending(JobKind.SHELL, StopCause.CANCELLED, exit_code=0) is Ending.CANCELLED
    assert ending(JobKind.BATCH, exit_code=0, lost=True) is Ending.INTERRUPTED


def test_a_session_that_was_stopped_says_why():
    exit = ExitFacts(exit_code=85, stop_requested=True)
    outcome = read_exit(exit, spec(JobKind.NOTEBOOK), StopCause.LOST_GPU, "GPU a0 of node a is lost")
    assert outcome.reason == "the notebook was stopped: GPU a0 of node a is lost"


def test_a_session_that_nobody_uses_is_warned_and_then_ended():
    lab = Lab()
    job = lab.running(kind=JobKind.SHELL, suspend=SuspendMode.NONE, idle_limit_s=3600.0)
    lab.tell(e.SessionUnused(job.id, 1, 0.0))
    assert len(told(lab)) == 0
    lab.tell(e.SessionUnused(job.id, 1, 500.0, 600.0))
    lab.tell(e.SessionUnused(job.id, 1, 500.0, 600.0))
    assert (job.state.name, job.reason) == ("RUNNING", "unused: ended in 10 min unless it is used")
    lab.tell(e.SessionUnused(job.id, 1, 0.0))
    assert job.reason == "running"
    lab.tell(e.SessionUnused(job.id, 1, 900.0, 600.0))
    assert stopped(lab.tell(e.SessionUnused(job.id, 1, 900.0, 0.0))) == {job.id}
    assert (job.state.name, job.reason) == ("STOPPING", "unused for 60 min")
    lab.end(job, ExitFacts(exit_code=0, stop_requested=True))
    assert (job.state.name, job.reason) == ("CANCELLED", "unused for 60 min")
    assert [narrate(event) for event in told(lab)] == [
        "unused: ended in 10 min unless it is used", "used again",
        "unused: ended in 10 min unless it is used", "unused too long",
    ]  # fmt: skip


def told(lab: Lab) -> list[e.Event]:
    """What the journal has of its use."""
    return [event for _, event in lab.journal if isinstance(event, e.SessionUnused)]
