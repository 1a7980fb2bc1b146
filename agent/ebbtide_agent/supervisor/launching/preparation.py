"""Prepare what an attempt needs before its processes start: a checkpoint to resume from, environments, a port."""

import os
import re
import socket
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide import checkpoints

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.contract.attempt_dir import JOB_SOCKET, AttemptDir
from ebbtide_agent.contract.environment import gang_environment, job_environment, rank_environment
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.contract.job_dir import provide_job_dir
from ebbtide_agent.slurm.variables import slurm_environment, steps_dir
from ebbtide_agent.supervisor.launching import patience
from ebbtide_agent.supervisor.launching.launch import stop_signal
from ebbtide_agent.supervisor.launching.script import command_of, edited, has_python
from ebbtide_agent.supervisor.sealing import settling
from ebbtide_agent.supervisor.sealing.settling import LeftFiles
from ebbtide_agent.supervisor.status import Refused, WireRefusalCause, refusing
from ebbtide_agent.supervisor.streams.output_file import try_to_open

Ask = Callable[[Callable[..., Any], tuple[Any, ...], Account | None], Any]
"""Runs a task with arguments as an account, and returns its answer. Raises OSError, or Refused if it takes too long."""
_CANNOT_SAVE = "cannot use the checkpoint directory"
_PLACEHOLDER = re.compile(r"(?<!\$)\{(checkpoint|output)\}")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is needed to start the attempt's processes and to end them."""

    command: tuple[str, ...]
    signal: int  # number of the stop signal
    resumed_step: int | None
    has_workdir: bool
    environments: tuple[dict[str, str], ...]  # one per process
    port: int  # where the ranks meet; 0: they do not need to
    edited: tuple[str, ...]  # scripts that have changed since the job was submitted


def prepare(intent: Intent, place: AttemptDir, ask: Ask) -> Prepared:
    """Prepare the attempt, with the job's lock held. Helper processes touch the user's files. Raises Refused."""
    signum = stop_signal(intent.signal)
    with refusing(_CANNOT_SAVE if intent.account is None else f"{_CANNOT_SAVE} as {intent.account.name}"):
        if intent.account is not None:
            ask(_provide, (intent,), None)
        remains = list(settling.noted(intent))
        found = ask(_look, (intent, remains), intent.account)
    if found["refusal"]:
        raise Refused(found["refusal"], WireRefusalCause(found["cause"]))
    for number in found["sealed"]:
        settling.drop(intent, number)
    with refusing("cannot write the job's script"):
        command = ask(_script, (intent, place), intent.account)
    port = rendezvous_port(intent) if intent.ddp or intent.meets else 0
    return Prepared(
        command=(*command, *_resume_args(intent, found["resume_dir"])),
        signal=signum,
        resumed_step=found["step"],
        has_workdir=found["has_workdir"],
        environments=_environments(intent, place, found["resume_dir"], port),
        port=port,
        edited=tuple(found["edited"]),
    )


def _provide(intent: Intent) -> None:
    assert intent.account is not None
    provide_job_dir(intent.job_dir, intent.account)


def _script(intent: Intent, place: AttemptDir) -> list[str]:
    return list(command_of(intent, place))


def _look(intent: Intent, remains: list[LeftFiles]) -> dict[str, Any]:
    """Look with the user's rights at what the processes will find. Raises OSError if they cannot save."""
    answer: dict[str, Any] = {"refusal": "", "cause": "", "sealed": []}
    try:
        answer["sealed"], checkpoint = _what_was_saved(intent, remains)
        if checkpoint is None and intent.needs_checkpoint:
            reason = f"the job had progress, and no checkpoint in {intent.job_checkpoint_dir} verifies"
            raise Refused(reason, WireRefusalCause.NO_CHECKPOINT)
        _prepare_directories(intent)
        if not has_python(intent.python_env):
            reason = f"no Python environment {intent.python_env} on node {Path(intent.node_dir).name}"
            raise Refused(reason, WireRefusalCause.NO_PATH)
        if intent.output:
            try_to_open(Path(intent.output))
    except Refused as refused:
        return answer | {"refusal": str(refused), "cause": refused.cause}
    step, resume_dir = (None, "") if checkpoint is None else (checkpoint.step, str(checkpoint.path))
    return (
        answer
        | {"step": step, "resume_dir": resume_dir, "edited": edited(intent)}
        | {"has_workdir": os.path.isdir(intent.workdir)}
    )


def _what_was_saved(intent: Intent, remains: list[LeftFiles]) -> tuple[list[int], checkpoints.Checkpoint | None]:
    """Seal what earlier attempts left, and return those of `remains` for which that is done, and what to resume from.

    Raises OSError for what cannot be read just now, until the patience with that is over.
    """
    if intent.attempt == 1:  # most attempts are first ones and have nothing to look for
        return [], None
    try:
        saved = _sealed_and_found(intent, remains, skips_unreadable=False)
    except OSError as error:
        if patience.is_over(intent.job_dir, intent.attempt, error):
            return _sealed_and_found(intent, remains, skips_unreadable=True)
        patience.note(intent.job_dir, intent.attempt, error)
        raise
    if intent.node_rank == 0:
        patience.drop(intent.job_dir)
    return saved


def _sealed_and_found(
    intent: Intent, remains: list[LeftFiles], *, skips_unreadable: bool
) -> tuple[list[int], checkpoints.Checkpoint | None]:
    sealed = list[int]()
    if intent.node_rank == 0:  # the other nodes start when this one has prepared
        sealed = settling.seal_earlier(intent, remains, skips_unreadable=skips_unreadable)
    return sealed, checkpoints.newest_valid(
        intent.job_dir, before_attempt=intent.attempt, skips_unreadable=skips_unreadable
    )


def _prepare_directories(intent: Intent) -> None:
    # Root's job directory is closed to other users, who may enter the directory above it.
    intent.job_dir.mkdir(mode=0o777 if os.geteuid() else 0o700, parents=True, exist_ok=True)
    intent.checkpoint_dir.mkdir(exist_ok=True)
    intent.output_dir.mkdir(exist_ok=True)
    if intent.slurm and intent.num_nodes > 1:
        steps_dir(intent.job_dir, intent.attempt).mkdir(exist_ok=True)


def _resume_args(intent: Intent, resume_dir: str) -> tuple[str, ...]:
    """Return the arguments for a resume: from the second attempt on, and with `{checkpoint}` only if there is one.

    Without `{checkpoint}` in them the script looks for itself, and only the script knows whether anything is there.
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
        common |= slurm_environment(intent, intent.cpus, len(intent.gpus), common, sys.executable)
    if not intent.ddp:
        return (common,)
    return tuple({**common, **rank_environment(intent, rank, port)} for rank in range(intent.processes))


def rendezvous_port(intent: Intent) -> int:
    """Return the port at which the attempt's ranks meet: the first node's choice, or a free port of this node.

    Attempts search from different ports, so that two that start at once do not choose the same one. Raises Refused if
    all ports are taken.
    """
    if intent.master_port:
        return intent.master_port
    ports = intent.network.ports
    seed = f"{intent.cluster_id}/{intent.job_id}/{intent.attempt}"
    first = zlib.crc32(seed.encode()) % len(ports)
    for offset in range(len(ports)):
        port = ports[(first + offset) % len(ports)]
        if _is_free(port, "127.0.0.1" if intent.num_nodes == 1 else ""):
            return port
    raise Refused(f"no free port for the ranks to meet on: {ports[0]}-{ports[-1]} are all taken (ebb agent --ports)")


def _is_free(port: int, host: str) -> bool:
    with socket.socket() as probe:
        # Without this option a port counts as taken for a minute after its last user has closed it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
