"""What is on disk of the attempts of this node, and what became of one whose supervisor is not connected."""

import logging
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ebbtide_protos.process import Identity, boot_id

from ebbtide_agent.attempts import survivors
from ebbtide_agent.contract.attempt_dir import AttemptDir, attempts_dir
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.helper.answer import Unknown
from ebbtide_agent.helper.asking import ask_and_wait
from ebbtide_agent.helper.confining import HELPER
from ebbtide_agent.processes import procfs
from ebbtide_agent.processes.cgroup import ControlGroup
from ebbtide_agent.processes.process_tree import descendants, is_below
from ebbtide_agent.supervisor import evidence, output, settling
from ebbtide_agent.supervisor.settling import Remains, Settled
from ebbtide_agent.supervisor.status import Checkpointed, Exit, Phase, PublishedCheckpoint, Refused, Status

log = logging.getLogger(__name__)

# No process can end with it by itself: our failure, as the shell's conventions have it.
_LOST_EXIT_CODE = 125
PATIENCE_S: Final = 60.0
"""For so long what a lost attempt wrote is waited for; it may have to be read."""
# Where its checkpoint directory really is has to be known sooner than that: somebody waits to be killed.
_REAL_S = 0.3
# How long killed processes are waited for before it is tried again.
_KILL_S = 0.1


@dataclass(frozen=True, slots=True)
class Alive:
    """Its supervisor lives, and may be connected to."""

    supervisor: Identity


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """It is over, and its last status is on disk."""

    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """Its supervisor died without recording an end; processes of it may still live."""

    supervisor: Identity


Found = Alive | EndedAttempt | Lost


def read_intents(node_dir: Path) -> list[tuple[AttemptDir, Intent]]:
    """All attempts on disk that are not forgotten. One that is damaged is passed over: it must not stop the others."""
    places = [AttemptDir(path) for path in attempts_dir(node_dir).iterdir()]
    intents = [(place, read_intent(place)) for place in places if not place.is_forgotten()]
    return [(place, intent) for place, intent in intents if intent is not None]


def read_intent(place: AttemptDir) -> Intent | None:
    """What the attempt was ordered to be; None, and a line in the log, if that cannot be known."""
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
    """Find out how the attempt stands; `supervisor` is the one last heard of.

    Raises OSError, ValueError or LookupError if what is on disk cannot be read.
    """
    supervisor = supervisor or recorded_supervisor(place)
    # A supervisor that lives has not released the job's lock yet, whatever it has written already.
    if supervisor is not None and supervisor.is_alive():
        return Alive(supervisor)
    final = _final_status(place)
    if final is not None:
        return EndedAttempt(final)
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


def kill_under(place: AttemptDir, intent: Intent, supervisor: Identity, fenced: bool) -> bool:
    """Kill the attempt's processes in place of a supervisor that lives and has not done it. Blocks.

    `fenced`: because its lease is over. A supervisor that comes back reads here that the kill was not the job's end.
    False if one sleeps where no signal reaches it: the supervisor is not to blame then, and the attempt is not over.
    """
    below = [process for pid in descendants(supervisor.pid) if (process := Identity.of(pid)) is not None]
    own = [process for process in below if supervisor.is_alive() and is_below(process.pid, supervisor.pid)]
    _note_overdue(place, intent, fenced)
    _kill(place, intent, own)
    if (path := place.cgroup()) is not None:
        ControlGroup(path).kill()
    stats = [procfs.read_stat(process.pid) for process in own]
    return all(stat is None or not stat.in_kernel or stat.command == HELPER for stat in stats)


def kill_survivors(place: AttemptDir, intent: Intent, supervisor: Identity) -> bool:
    """Kill what a dead supervisor left behind; False if there is nothing left. Blocks, and is to be repeated."""
    if supervisor.boot_id != boot_id():
        return False  # the machine went down with everything on it
    left = survivors.of_attempt(Path(intent.node_dir), (intent.job_id, intent.attempt))
    _kill(place, intent, left)
    return bool(left) or not _end_cgroup(place)


def _kill(place: AttemptDir, intent: Intent, left: list[Identity]) -> None:
    for process in left:
        process.signal(signal.SIGSTOP)  # nobody begins a file, or comes to its end, after we have looked
    _note_cut_short(place, intent, left)
    for process in left:
        process.signal(signal.SIGKILL)


def _end_cgroup(place: AttemptDir) -> bool:
    """Kill what is in the attempt's control group, whoever its parents are; whether it is empty, and removed."""
    path = place.cgroup()
    if path is None:
        return True
    group = ControlGroup(path)
    group.kill()
    empty = group.is_empty_within(_KILL_S)
    if empty:
        group.remove()
    return empty


def _note_cut_short(place: AttemptDir, intent: Intent, left: list[Identity]) -> None:
    """Before they are killed, and on disk: this agent may end before it can say what became of the attempt."""
    try:
        real = ask_and_wait(os.path.realpath, str(intent.checkpoint_dir), account=intent.account, within_s=_REAL_S)
    except OSError as error:
        real = Unknown(str(error))
    directory = intent.checkpoint_dir if isinstance(real, Unknown) else Path(real)
    writing = evidence.being_written(directory, [process.pid for process in left])
    if not writing:
        return
    try:
        place.record_cut_short(place.cut_short() | writing)
    except (OSError, ValueError) as error:  # a full disk, or no directory any more: killing is more urgent
        log.error("event=cut-short-not-noted job=%s attempt=%d error=%r", intent.job_id, intent.attempt, str(error))


def _note_overdue(place: AttemptDir, intent: Intent, fenced: bool) -> None:
    try:
        if place.killed_overdue() is None:
            place.record_killed_overdue(fenced)
    except (OSError, ValueError) as error:  # killing is more urgent
        log.error("event=overdue-not-noted job=%s attempt=%d error=%r", intent.job_id, intent.attempt, str(error))


def record_loss(place: AttemptDir, intent: Intent, patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """Record that the attempt ended nobody knows how, and return its status. Blocks. Raises OSError.

    To be called when no process of it is left. What it wrote is sealed like the work of a job that was killed, now if
    that can be done in time, or before its next attempt.
    """
    output.complete(intent, place)
    status = Status(intent.job_id, intent.attempt, Identity.nobody(), Phase.EXITED, lost=True)
    status.exit = Exit(exit_code=_LOST_EXIT_CODE, ended_at=time.time())
    cut_short = _cut_short(place)
    status.checkpoint = _settled(intent, Remains(intent.attempt, cut_short=tuple(sorted(cut_short))), patience_s)
    if status.checkpoint is None and cut_short:
        status.exit.checkpointed = Checkpointed.NO
    place.record_final_status(status.to_json())
    return status.to_json()


def _settled(intent: Intent, remains: Remains, patience_s: float) -> PublishedCheckpoint | None:
    """Seal what it wrote; its newest checkpoint then."""
    what = intent.to_json(), asdict(remains)
    try:
        found = ask_and_wait(settling.settle_lost, *what, account=intent.account, within_s=patience_s)
        if not isinstance(found, Unknown):
            return Settled.from_json(found).checkpoint
        reason = found.reason
    except (OSError, LookupError, TypeError, ValueError) as error:
        reason = str(error)
    log.error("event=checkpoint-unknown job=%s attempt=%d reason=%r", intent.job_id, intent.attempt, reason)
    with suppress(OSError):
        settling.note(intent, remains)
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
        return None  # nobody knows then how the attempt ended


def _give_up(place: AttemptDir, intent: Intent) -> Found:
    """No supervisor has claimed the attempt, so nothing of it runs. See to it that none does later either."""
    place.path.mkdir(mode=0o700, exist_ok=True)
    if not place.claim(Identity.nobody().to_json()):
        return Alive(recorded_supervisor(place) or Identity.nobody())
    return EndedAttempt(record_refusal(place, intent, "its supervisor died before it could start the attempt"))
