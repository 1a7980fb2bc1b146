"""What became of an attempt whose supervisor this agent has no connection to."""

import logging
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide import checkpoints

from ebbtide_agent import survivors
from ebbtide_agent.attempt_dir import AttemptDir, lock_path
from ebbtide_agent.identity import Identity, boot_id
from ebbtide_agent.rights import rights_of
from ebbtide_agent.supervisor import evidence, output
from ebbtide_agent.supervisor.cgroup import Group
from ebbtide_agent.supervisor.intent import Intent
from ebbtide_agent.supervisor.status import Checkpointed, Exit, Phase, PublishedCheckpoint, Refused, Status

log = logging.getLogger(__name__)

# No process can end with it by itself: our failure, as the shell's conventions have it.
_LOST_EXIT_CODE = 125
# How long killed processes are waited for before it is tried again.
_KILL_S = 0.1


@dataclass(frozen=True, slots=True)
class Alive:
    """Its supervisor lives, and may be connected to."""

    supervisor: Identity


@dataclass(frozen=True, slots=True)
class Ended:
    """It is over, and its last status is on disk."""

    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """Its supervisor died without recording an end; processes of it may still live."""

    supervisor: Identity


Found = Alive | Ended | Lost


def examine(place: AttemptDir, intent: Intent, supervisor: Identity | None) -> Found:
    """Find out how the attempt stands; `supervisor` is the one last heard of.

    Raises OSError, ValueError or LookupError if what is on disk cannot be read.
    """
    supervisor = supervisor or recorded_supervisor(place)
    # A supervisor that lives has not released the job's lock yet, whatever it has written already.
    if supervisor is not None and supervisor.is_alive():
        return Alive(supervisor)
    final = _final_status(place)
    if final is not None:
        return Ended(final)
    if supervisor is not None:
        return Lost(supervisor)
    return _give_up(place, intent)


def recorded_supervisor(place: AttemptDir) -> Identity | None:
    """Who claimed the attempt, alive or not. Raises OSError, ValueError, LookupError."""
    content = place.supervisor()
    return None if content is None else Identity.from_json(content)


def record_refusal(place: AttemptDir, intent: Intent, reason: str) -> dict[str, Any]:
    """Record that the attempt was not started, and return its status. Raises OSError."""
    status = Status(intent.job_id, intent.attempt, Identity.nobody())
    status.refuse(Refused(reason))
    place.path.mkdir(mode=0o700, exist_ok=True)
    place.record_intent(intent.to_json())
    place.record_final_status(status.to_json())
    return status.to_json()


def kill_survivors(place: AttemptDir, intent: Intent, supervisor: Identity) -> bool:
    """Kill what a dead supervisor left behind; False if there is nothing left. Blocks, and is to be repeated."""
    if supervisor.boot_id != boot_id():
        return False  # the machine went down with everything on it
    left = survivors.of_attempt(place, lock_path(Path(intent.node_dir), intent.job_id))
    for process in left:
        process.signal(signal.SIGSTOP)  # nobody begins a file, or comes to its end, after we have looked
    _note_cut_short(place, intent, left)
    for process in left:
        process.signal(signal.SIGKILL)
    return bool(left) or not _end_cgroup(place)


def _end_cgroup(place: AttemptDir) -> bool:
    """Kill what is in the attempt's control group, whoever its parents are; whether it is empty, and removed."""
    path = place.cgroup()
    if path is None:
        return True
    group = Group(path)
    group.kill()
    empty = group.is_empty_within(_KILL_S)
    if empty:
        group.remove()
    return empty


def _note_cut_short(place: AttemptDir, intent: Intent, left: list[Identity]) -> None:
    """Before they are killed, and on disk: this agent may end before it can say what became of the attempt."""
    writing = evidence.being_written(intent.checkpoint_dir, [process.pid for process in left])
    if not writing:
        return
    try:
        place.record_cut_short(place.cut_short() | writing)
    except (OSError, ValueError) as error:  # a full disk, or no directory any more: killing is more urgent
        log.error("event=cut-short-not-noted job=%s attempt=%d error=%r", intent.job_id, intent.attempt, str(error))


def record_loss(place: AttemptDir, intent: Intent) -> dict[str, Any]:
    """Record that the attempt ended nobody knows how, and return its status. Blocks. Raises OSError.

    To be called when no process of it is left. What it wrote is sealed like the work of a job that was killed.
    """
    output.complete(intent, place)
    status = Status(intent.job_id, intent.attempt, Identity.nobody(), Phase.EXITED, lost=True)
    status.exit = Exit(exit_code=_LOST_EXIT_CODE, ended_at=time.time())
    cut_short = _cut_short(place)
    with rights_of(intent.account):
        newest = _sealed(intent, cut_short)
    if newest is not None and newest.attempt == intent.attempt:
        status.checkpoint = PublishedCheckpoint(newest.step or 0, newest.bytes, str(newest.path), True)
    elif cut_short:
        status.exit.checkpointed = Checkpointed.NO
    place.record_final_status(status.to_json())
    return status.to_json()


def _sealed(intent: Intent, cut_short: frozenset[str]) -> checkpoints.Checkpoint | None:
    """Seal what it wrote; the job's newest checkpoint then."""
    if intent.node_rank == 0 and not evidence.nothing_is_whole(intent.checkpoint_dir, cut_short):
        checkpoints.seal(
            intent.checkpoint_dir,
            job_id=intent.job_id,
            attempt=intent.attempt,
            complete=False,
            cut_short=bool(cut_short),
        )
    return checkpoints.newest_valid(intent.job_dir, before_attempt=intent.attempt + 1)


def _cut_short(place: AttemptDir) -> frozenset[str]:
    try:
        return place.cut_short()
    except ValueError as error:
        log.error("event=damaged-record error=%r", str(error))
        return frozenset()


def _final_status(place: AttemptDir) -> dict[str, Any] | None:
    try:
        return place.final_status()
    except ValueError as error:
        log.error("event=damaged-exit-record error=%r", str(error))
        return None  # nobody knows then how the attempt ended


def _give_up(place: AttemptDir, intent: Intent) -> Found:
    """No supervisor has claimed the attempt, so nothing of it runs. See to it that none does later either."""
    place.path.mkdir(mode=0o700, exist_ok=True)
    if not place.claim(Identity.nobody().to_json()):
        return Alive(recorded_supervisor(place) or Identity.nobody())
    return Ended(record_refusal(place, intent, "its supervisor died before it could start the attempt"))
