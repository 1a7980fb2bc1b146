"""What a job is for: what a session may be, and how its end is read."""

import pytest
from ebbtide_core.model import Checkpointed, ExitFacts, JobKind, LaunchMode, StopCause, SuspendMode
from ebbtide_core.outcome import Ending, read_exit
from ebbtide_core.spec import JobSpec, SpecError, validate


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
