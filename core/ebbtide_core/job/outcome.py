"""Decides what the end of an attempt means: the whole exit contract is here.

The supervisor reports facts; only this module decides whether the job is done, stepped aside, failed, or asks to be run
again. docs/reference/exits.md has the same table in words.
"""

import signal as signals  # noqa: TID251 (names and numbers only)
from dataclasses import replace
from enum import Enum, auto

from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.spec.leaving import LeavingSpec
from ebbtide_core.model.types import Checkpointed, ExitFacts, ExitZero, JobKind, StopCause

SUSPENDED_EXITS = frozenset({75, 85, 99, 143})
"""Exit codes that mean that a job stepped aside: EX_TEMPFAIL, HTCondor's checkpoint exit, Grid Engine's requeue, and
128 + SIGTERM."""
AGAIN_EXITS = frozenset({75, 85, 99})
"""Exit codes of a job that was not asked to stop and wants to be run again."""


class Ending(Enum):
    """What an attempt's end means for its job."""

    COMPLETED = auto()
    SUSPENDED = auto()
    REQUEUED = auto()
    INTERRUPTED = auto()
    FAILED = auto()
    CANCELLED = auto()
    TIMED_OUT = auto()
    EXPELLED = auto()


class Fate(Enum):
    """What becomes of the work that an attempt did since its last checkpoint."""

    KEPT = auto()
    LOST = auto()
    UNKNOWN = auto()
    """The attempt saves by itself if at all, without the SDK, and nobody knows when it did."""


@frozen
class Outcome:
    """An ending, and its reason in words; ``clean`` says that the job itself agreed to step aside.

    A failure that is not ``final`` is followed by another attempt if its job has any left.
    """

    ending: Ending
    reason: str
    clean: bool = True
    final: bool = False


_COMPLETED = Outcome(Ending.COMPLETED, "completed")


def read_exit(exit: ExitFacts, spec: JobSpec, cause: StopCause | None, why: str = "") -> Outcome:
    """Decide what ``exit`` means.

    ``cause`` and ``why`` say why the attempt was asked to stop; None if it was not.
    """
    outcome = _read_exit(exit, spec, cause, why)
    return _read_once(outcome) if spec.stdin else outcome


def _read_once(outcome: Outcome) -> Outcome:
    """Rule out another attempt, because standard input that was read is gone."""
    if outcome.ending is Ending.FAILED:
        return replace(outcome, final=True)
    if outcome.ending not in (Ending.SUSPENDED, Ending.REQUEUED, Ending.INTERRUPTED):
        return outcome
    reason = f"{outcome.reason}; it is not run again: its standard input cannot be read twice"
    return Outcome(Ending.EXPELLED, reason, clean=False)


def _read_exit(exit: ExitFacts, spec: JobSpec, cause: StopCause | None, why: str) -> Outcome:
    gone = after_stop(cause, why) if cause is not None else None
    if spec.kind.is_session:
        return gone or _read_session(exit, spec.kind, why)
    if exit.lost:
        return gone or _read_unknown(exit)
    if exit.input_failure:
        return gone or Outcome(Ending.FAILED, f"failed: {exit.input_failure}")
    if exit.fenced and cause is None:
        return _read_fenced(exit, spec)
    if failure := exit.swap_failure or exit.mps_failure:
        ending = Ending.INTERRUPTED if cause is None else Ending.SUSPENDED
        return gone or Outcome(ending, f"{failure}; it resumes from its last checkpoint", clean=False)
    if cause is StopCause.LOST_GPU or (cause is None and exit.lost_gpu):
        return _read_loss(exit, spec)
    if not exit.stop_requested or cause is None:
        outcome = _read_unrequested(exit)
        return outcome if outcome.ending is Ending.COMPLETED else gone or outcome
    if exit.exit_code == 0 and exit.signal == 0 and not exit.delivered:
        return Outcome(Ending.COMPLETED, "completed before the stop signal reached it")
    return gone or _read_suspension(exit, spec)


def _read_unknown(exit: ExitFacts) -> Outcome:
    return Outcome(Ending.INTERRUPTED, f"interrupted: {describe_exit(exit)}", clean=False)


def _read_fenced(exit: ExitFacts, leaving: LeavingSpec) -> Outcome:
    """Read the end of an attempt that ended itself: its master was not heard for too long, or until its node ended."""
    outcome = _read_suspension(exit, leaving)
    if outcome.ending is Ending.COMPLETED:
        return outcome
    why = "its node ended, and the master was not heard"
    if leaving.failover_after_s is not None:
        why = f"its lease ended, the master was not heard for {leaving.failover_after_s:g} s"
    return Outcome(Ending.INTERRUPTED, f"interrupted: {why} ({outcome.reason})", outcome.clean)


def _read_session(exit: ExitFacts, kind: JobKind, why: str) -> Outcome:
    """Read the end of a session, which never starts again: no user would be at the new one.

    A shell's exit code is that of its user's last command, and no failure.
    """
    what = kind.value
    if exit.lost:
        return Outcome(Ending.EXPELLED, f"the {what} is lost: {describe_exit(exit)}", clean=False)
    if exit.stop_requested:
        return Outcome(Ending.EXPELLED, f"the {what} was stopped: {why or describe_exit(exit)}", clean=False)
    ended_by_user = kind is JobKind.SHELL and not exit.signal
    if ended_by_user or not (exit.exit_code or exit.signal):
        return _COMPLETED
    return Outcome(Ending.FAILED, f"failed with {describe_exit(exit)}")


def after_stop(cause: StopCause, why: str) -> Outcome | None:
    """Return the outcome of an attempt whose job is over because of ``cause``, unless it completed first; else None."""
    match cause:
        case StopCause.CANCELLED:
            return Outcome(Ending.CANCELLED, "cancelled by user")
        case StopCause.TIME_LIMIT:
            return Outcome(Ending.TIMED_OUT, "time limit reached")
        case StopCause.UNUSED:
            return Outcome(Ending.CANCELLED, why)
        case StopCause.EXPELLED:
            return Outcome(Ending.EXPELLED, why)
        case _:
            return None


def read_fate(exit: ExitFacts, ending: Ending, *, published: bool) -> Fate:
    """Decide what becomes of the work that an attempt did since its last checkpoint; ``published`` if it made any."""
    match ending:
        case Ending.COMPLETED:
            return Fate.KEPT
        case Ending.FAILED:
            return Fate.LOST
        case _ if exit.checkpointed is Checkpointed.YES:
            return Fate.KEPT
        case Ending.REQUEUED:
            return Fate.KEPT if published else Fate.UNKNOWN
        case Ending.SUSPENDED if not exit.swap_failure:
            return _fate_by_conduct(exit, published)
        case _:
            return Fate.LOST


def _fate_by_conduct(exit: ExitFacts, published: bool) -> Fate:
    """Return the same for an attempt that was asked to leave; it may have saved where the supervisor does not look."""
    if exit.checkpointed is Checkpointed.UNKNOWN:
        return Fate.KEPT if exit.acknowledged else Fate.UNKNOWN
    return Fate.LOST if published or exit.asked else Fate.UNKNOWN


def is_redone(fate: Fate, exit: ExitFacts) -> bool:
    """Return whether the job's next attempt has to do that work again.

    If nobody knows, it counts as lost where the job was seen to leave without saving.
    """
    return fate is Fate.LOST or (fate is Fate.UNKNOWN and exit.checkpointed is Checkpointed.NO)


def describe_exit(exit: ExitFacts) -> str:
    """Return an exit in words: ``exit code 1`` or ``signal SIGSEGV``, and that host memory was used up if it was."""
    if exit.lost:
        return exit.lost_because or "its exit status was not recorded"
    why = f" ({exit.memory_failure})" if exit.memory_failure else ""
    return f"signal {_signal_name(exit.signal)}{why}" if exit.signal else f"exit code {exit.exit_code}{why}"


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return str(number)


def _read_unrequested(exit: ExitFacts) -> Outcome:
    if exit.signal == 0 and exit.exit_code == 0:
        return _COMPLETED
    if exit.signal == 0 and exit.exit_code in AGAIN_EXITS:
        return Outcome(Ending.REQUEUED, f"asked to be run again ({describe_exit(exit)})")
    return Outcome(Ending.FAILED, f"failed with {describe_exit(exit)}")


def _read_loss(exit: ExitFacts, leaving: LeavingSpec) -> Outcome:
    """Read the end of an attempt that lost a GPU: unless it completed, it is interrupted by no fault of its own."""
    asked = exit.stop_requested and exit.delivered
    outcome = _read_suspension(exit, leaving) if asked else _read_unrequested(exit)
    if outcome.ending is Ending.COMPLETED:
        return outcome
    saved = outcome.ending is Ending.SUSPENDED and outcome.clean
    return Outcome(Ending.INTERRUPTED, f"interrupted: its GPU was lost ({describe_exit(exit)})", clean=saved)


def _read_suspension(exit: ExitFacts, leaving: LeavingSpec) -> Outcome:
    if exit.acknowledged:
        return Outcome(Ending.SUSPENDED, "checkpointed and stepped aside")
    if exit.killed:
        return Outcome(Ending.SUSPENDED, f"killed at the end of its grace period of {leaving.grace_s:g} s", clean=False)
    if exit.signal:
        ours = exit.signal == getattr(signals, leaving.signal, signals.SIGTERM)
        return Outcome(Ending.SUSPENDED, f"ended by {describe_exit(exit)} when asked to step aside", clean=ours)
    if exit.exit_code in SUSPENDED_EXITS:
        return Outcome(Ending.SUSPENDED, f"stepped aside ({describe_exit(exit)})")
    if exit.exit_code != 0:
        saved = exit.checkpointed is Checkpointed.YES
        return Outcome(Ending.SUSPENDED, f"ended with {describe_exit(exit)} in its grace period", clean=saved)
    if not exit.caught or exit.asked or leaving.exit_zero is ExitZero.COMPLETED:
        return Outcome(Ending.COMPLETED, "completed while it was asked to step aside")
    what = "saved and stepped aside" if exit.checkpointed is Checkpointed.YES else "stepped aside"
    return Outcome(Ending.SUSPENDED, f"{what} (exit code 0)")
