"""Reads the attempts of this node from disk, and finds out what became of one whose supervisor is not connected."""

import logging
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ebbtide_machine.process import Identity, boot_id

from ebbtide_agent.attempts import survivors
from ebbtide_agent.contract.attempt_dir import AttemptDir, attempts_dir
from ebbtide_agent.contract.intent import AttemptOnNode, Intent
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.helper.asking import ask_and_wait
from ebbtide_agent.helper.confining import HELPER
from ebbtide_agent.processes import procfs
from ebbtide_agent.processes.cgroup import ControlGroup
from ebbtide_agent.processes.process_tree import descendants, is_below
from ebbtide_agent.supervisor.sealing import evidence, settling
from ebbtide_agent.supervisor.sealing.settling import LeftFiles, SavedState
from ebbtide_agent.supervisor.status import Exit, Phase, PublishedCheckpoint, Refused, Status, WireCheckpointed
from ebbtide_agent.supervisor.streams import output

log = logging.getLogger(__name__)

# By the shell's conventions, 125 means that the program that runs a command failed, not the command.
_LOST_EXIT_CODE = 125
PATIENCE_S: Final = 60.0
"""Seconds to wait until a lost attempt's checkpoints are sealed; they may have to be read."""
# The real path of the checkpoint directory is needed sooner, because stopped processes wait to be killed.
_REAL_S = 0.3
# How long to wait for killed processes before the next try.
_KILL_S = 0.1


@dataclass(frozen=True, slots=True)
class Alive:
    """The attempt's supervisor lives, and the agent may connect to it."""

    supervisor: Identity


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """The attempt is over, and its last status is on disk."""

    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """The attempt's supervisor died without recording an end; processes of the attempt may still live."""

    supervisor: Identity


Found = Alive | EndedAttempt | Lost


def read_intents(node_dir: Path) -> list[tuple[AttemptDir, Intent]]:
    """Return all attempts on disk that are not forgotten. Damaged ones are skipped, and do not block the others."""
    places = [AttemptDir(path) for path in attempts_dir(node_dir).iterdir()]
    intents = [(place, read_intent(place)) for place in places if not place.is_forgotten()]
    return [(place, intent) for place, intent in intents if intent is not None]


def read_intent(place: AttemptDir) -> Intent | None:
    """Return the attempt's intent; None, and a line in the log, if it is damaged or missing."""
    try:
        content = place.intent()
        intent = None if content is None else Intent.from_json(content)
        recorded_supervisor(place)
    except (OSError, ValueError, LookupError, TypeError) as error:
        log.error("event=damaged-attempt directory=%s error=%r", place.path.name, str(error))
        return None
    if intent is None or place.path.name != f"{intent.job_id}.{intent.attempt}":
        log.error("event=damaged-attempt directory=%s error='no intent of its own'", place.path.name)
        return None
    return intent


def examine(place: AttemptDir, intent: Intent, supervisor: Identity | None) -> Found:
    """Find out whether the attempt runs, has ended or is lost; `supervisor` is the one last heard of.

    Raises OSError, ValueError or LookupError if the attempt's files cannot be read.
    """
    supervisor = supervisor or recorded_supervisor(place)
    # A supervisor that lives still holds the job's lock, even if it has already recorded the end.
    if supervisor is not None and supervisor.is_alive():
        return Alive(supervisor)
    final = _final_status(place)
    if final is not None:
        return EndedAttempt(final)
    if supervisor is not None:
        return Lost(supervisor)
    return _give_up(place, intent)


def recorded_supervisor(place: AttemptDir) -> Identity | None:
    """Return the supervisor that claimed the attempt, even if dead. Raises OSError, ValueError, LookupError."""
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


def kill_under(place: AttemptDir, attempt: AttemptOnNode, supervisor: Identity, fenced: bool) -> bool:
    """Kill the attempt's processes because its live supervisor has not done it. Blocks.

    `fenced` says that its lease is over, or its node ends. The kill is recorded, so that a supervisor that goes on
    later does not take it for the job's own end. Return False if a process is in uninterruptible sleep: then the
    supervisor is not to blame, and the attempt is not over.
    """
    below = [process for pid in descendants(supervisor.pid) if (process := Identity.of(pid)) is not None]
    own = [process for process in below if supervisor.is_alive() and is_below(process.pid, supervisor.pid)]
    _note_overdue(place, attempt, fenced)
    _kill(place, attempt, own)
    if (path := place.cgroup()) is not None:
        ControlGroup(path).kill()
    stats = [procfs.read_stat(process.pid) for process in own]
    return all(stat is None or not stat.in_kernel or stat.command == HELPER for stat in stats)


def kill_survivors(place: AttemptDir, attempt: AttemptOnNode, supervisor: Identity) -> bool:
    """Kill the processes that a dead supervisor left. Return False if none is left, else repeat the call. Blocks."""
    if supervisor.boot_id != boot_id():
        return False  # the machine was rebooted, so no process is left
    left = survivors.of_attempt(Path(attempt.node_dir), (attempt.job_id, attempt.attempt))
    _kill(place, attempt, left)
    return bool(left) or not _end_cgroup(place)


def _kill(place: AttemptDir, attempt: AttemptOnNode, left: list[Identity]) -> None:
    for process in left:
        process.signal(signal.SIGSTOP)  # so that no file is begun or finished after the look at open files
    _note_cut_short(place, attempt, left)
    for process in left:
        process.signal(signal.SIGKILL)


def _end_cgroup(place: AttemptDir) -> bool:
    """Kill all processes in the attempt's control group. Return whether the group is empty, and then removed."""
    path = place.cgroup()
    if path is None:
        return True
    group = ControlGroup(path)
    group.kill()
    empty = group.is_empty_within(_KILL_S)
    if empty:
        group.remove()
    return empty


def _note_cut_short(place: AttemptDir, attempt: AttemptOnNode, left: list[Identity]) -> None:
    """Record on disk which files the processes are writing, because this agent may end before it reports the end."""
    try:
        real = ask_and_wait(os.path.realpath, str(attempt.checkpoint_dir), account=attempt.account, within_s=_REAL_S)
    except OSError as error:
        real = NoAnswer(str(error))
    directory = attempt.checkpoint_dir if isinstance(real, NoAnswer) else Path(real)
    writing = evidence.being_written(directory, [process.pid for process in left])
    if not writing:
        return
    try:
        place.record_cut_short(place.cut_short() | writing)
    except (OSError, ValueError) as error:  # a full disk, or the directory is gone; killing is more urgent
        log.error("event=cut-short-not-noted job=%s attempt=%d error=%r", attempt.job_id, attempt.attempt, str(error))


def _note_overdue(place: AttemptDir, attempt: AttemptOnNode, fenced: bool) -> None:
    try:
        if place.killed_overdue() is None:
            place.record_killed_overdue(fenced)
    except (OSError, ValueError) as error:  # killing is more urgent
        log.error("event=overdue-not-noted job=%s attempt=%d error=%r", attempt.job_id, attempt.attempt, str(error))


def record_loss(place: AttemptDir, intent: Intent, patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """Record that the attempt ended with an unknown exit, and return its status. Blocks. Raises OSError.

    Call it when no process of the attempt is left. Its checkpoints are sealed like those of a killed job: now if that
    takes no longer than `patience_s`, else before the job's next attempt.
    """
    output.complete(intent, place)
    status = Status(intent.job_id, intent.attempt, Identity.nobody(), Phase.EXITED, lost=True)
    status.exit = Exit(exit_code=_LOST_EXIT_CODE, ended_at=time.time())
    cut_short = _cut_short(place)
    status.checkpoint = _settled(intent, LeftFiles(intent.attempt, cut_short=tuple(sorted(cut_short))), patience_s)
    if status.checkpoint is None and cut_short:
        status.exit.checkpointed = WireCheckpointed.NO
    place.record_final_status(status.to_json())
    return status.to_json()


def _settled(attempt: AttemptOnNode, remains: LeftFiles, patience_s: float) -> PublishedCheckpoint | None:
    """Seal the attempt's checkpoints and return the newest."""
    what = str(attempt.job_dir), attempt.job_id, attempt.node_rank, asdict(remains)
    try:
        found = ask_and_wait(settling.settle_lost, *what, account=attempt.account, within_s=patience_s)
        if not isinstance(found, NoAnswer):
            return SavedState.from_json(found).checkpoint
        reason = found.reason
    except (OSError, LookupError, TypeError, ValueError) as error:
        reason = str(error)
    log.error("event=checkpoint-unknown job=%s attempt=%d reason=%r", attempt.job_id, attempt.attempt, reason)
    with suppress(OSError):
        settling.note(attempt, remains)
    return None


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
        return None  # the end is unknown then


def _give_up(place: AttemptDir, intent: Intent) -> Found:
    """Claim an attempt that no supervisor has claimed, so that none can start it later, and record its refusal."""
    place.path.mkdir(mode=0o700, exist_ok=True)
    if not place.claim(Identity.nobody().to_json()):
        return Alive(recorded_supervisor(place) or Identity.nobody())
    return EndedAttempt(record_refusal(place, intent, "its supervisor died before it could start the attempt"))
