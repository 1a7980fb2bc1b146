"""What has to be there before an attempt's processes may start: a checkpoint to go on from, and their environment."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from ebbtide import checkpoints

from ebbtide_agent.attempt_dir import JOB_SOCKET, AttemptDir
from ebbtide_agent.environment import gang_environment, job_environment, rank_environment
from ebbtide_agent.job_dir import provide_job_dir
from ebbtide_agent.rights import rights_of
from ebbtide_agent.slurm.variables import slurm_environment, steps_dir
from ebbtide_agent.supervisor.edits import edited
from ebbtide_agent.supervisor.intent import Intent
from ebbtide_agent.supervisor.launch import rendezvous_port, stop_signal
from ebbtide_agent.supervisor.script import command_of, has_python
from ebbtide_agent.supervisor.status import RefusalCause, Refused, refusing

_CANNOT_SAVE = "cannot use the checkpoint directory"
_PLACEHOLDER = re.compile(r"(?<!\$)\{(checkpoint|output)\}")


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that the start of the processes and their end depend on."""

    command: tuple[str, ...]
    signal: int  # number of the stop signal
    resumed_step: int | None
    environments: tuple[dict[str, str], ...]  # one per process
    port: int  # where its ranks meet; 0: it has but one
    edited: tuple[str, ...]  # scripts that have changed since the job was submitted


def prepare(intent: Intent, place: AttemptDir) -> Prepared:
    """To be called with the job's lock held. Raises Refused."""
    signum = stop_signal(intent.signal)
    with refusing(_CANNOT_SAVE if intent.account is None else f"{_CANNOT_SAVE} as {intent.account.name}"):
        if intent.account is not None:
            provide_job_dir(intent.job_dir, intent.account)
        with rights_of(intent.account):
            checkpoint = _prepare_directories(intent)
    with rights_of(intent.account):
        can_start, changed = has_python(intent.python_env), edited(intent)
    if not can_start:
        reason = f"no Python environment {intent.python_env} on node {Path(intent.node_dir).name}"
        raise Refused(reason, RefusalCause.NO_PATH)
    with refusing("cannot write the job's script"):
        command = command_of(intent, place)
    port = rendezvous_port(intent) if intent.ddp or intent.meets else 0
    resume_dir = "" if checkpoint is None else str(checkpoint.path)
    return Prepared(
        command=command + _resume_args(intent, resume_dir),
        signal=signum,
        resumed_step=None if checkpoint is None else checkpoint.step,
        environments=_environments(intent, place, resume_dir, port),
        port=port,
        edited=changed,
    )


def _prepare_directories(intent: Intent) -> checkpoints.Checkpoint | None:
    checkpoint = _checkpoint_to_resume(intent)
    # Root's own is nobody else's business, where others may enter what is above it.
    intent.job_dir.mkdir(mode=0o777 if os.geteuid() else 0o700, parents=True, exist_ok=True)
    intent.checkpoint_dir.mkdir(exist_ok=True)
    intent.output_dir.mkdir(exist_ok=True)
    if intent.slurm and intent.num_nodes > 1:
        steps_dir(intent).mkdir(exist_ok=True)
    return checkpoint


def _checkpoint_to_resume(intent: Intent) -> checkpoints.Checkpoint | None:
    found = None
    if intent.attempt > 1:  # most attempts are first ones and have nothing to look for
        found = checkpoints.newest_valid(Path(intent.job_checkpoint_dir), before_attempt=intent.attempt)
    if found is None and intent.needs_checkpoint:
        reason = f"the job had progress, and no checkpoint in {intent.job_checkpoint_dir} verifies"
        raise Refused(reason, RefusalCause.NO_CHECKPOINT)
    return found


def _resume_args(intent: Intent, resume_dir: str) -> tuple[str, ...]:
    """What tells the script to go on: from the second attempt on, and where it names a checkpoint only if there is one.

    Without `{checkpoint}` in it the script looks for itself, where nobody else knows whether anything is there.
    """
    paths = {"checkpoint": resume_dir, "output": str(intent.output_dir)}
    named = {name for argument in intent.resume_args for name in _PLACEHOLDER.findall(argument)}
    if intent.attempt == 1 or ("checkpoint" in named and not resume_dir):
        return ()
    return tuple(_PLACEHOLDER.sub(lambda match: paths[match[1]], argument) for argument in intent.resume_args)


def _environments(intent: Intent, place: AttemptDir, resume_dir: str, port: int) -> tuple[dict[str, str], ...]:
    common = job_environment(
        intent,
        checkpoint_dir=str(intent.checkpoint_dir),
        resume_dir=resume_dir,
        socket=str(place.front(intent.account) / JOB_SOCKET),
    )
    if intent.meets:
        common |= gang_environment(intent, port)
    if intent.slurm:
        common |= slurm_environment(intent, common, sys.executable)
    if not intent.ddp:
        return (common,)
    return tuple({**common, **rank_environment(intent, rank, port)} for rank in range(intent.processes))
