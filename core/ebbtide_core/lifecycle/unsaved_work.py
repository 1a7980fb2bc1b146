"""Says what a job that was asked to leave has not saved, and what may help it to save next time.

Its supervisor has decided whether it saved (`Checkpointed`); this module never decides that again.
"""

import math
from collections.abc import Iterator
from typing import Final

from ebbtide_core.events.unsaved import WorkUnsaved
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.job.outcome import SUSPENDED_EXITS, describe_exit
from ebbtide_core.model.spec.leaving import LeavingSpec
from ebbtide_core.model.types import Checkpointed, Clue, ExitFacts, SignalTarget
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState

_BEGINNING_S: Final = 10.0
"""Seconds that a script may take to load what it needs, before it can answer a request to leave."""
_CATCHES: Final = {Clue.CATCHES_TERM: "TERM", Clue.CATCHES_USR1: "USR1", Clue.CATCHES_USR2: "USR2"}


def find(job: Job, attempt: Attempt) -> Iterator[WorkUnsaved]:
    """Yield the event for ``attempt``, the newest, which has ended; nothing if all of its work is saved."""
    end, stop, began = attempt.end, attempt.stop, attempt.first_started
    if end is None or end.exit is None or stop is None or began is None or job.end is not None or not job.suspensions:
        return
    suspension, exit = job.suspensions[-1], end.exit
    if suspension.exited != end.at:
        return
    lost = _lost(exit, suspension.kept_step, suspension.left_step)
    if lost or exit.checkpointed is not Checkpointed.YES:
        age_s = stop.requested - began if suspension.left_step is None else math.inf
        yield WorkUnsaved(job.id, attempt.number, exit.checkpointed, lost, _hint(exit, job.spec, age_s))


def _noted(state: ClusterState, job: Job, event: WorkUnsaved, now: float) -> None:
    if job.suspensions:
        job.suspensions[-1].lost, job.suspensions[-1].hint = event.lost, event.hint


def in_words(event: WorkUnsaved) -> str:
    """Return in words what became of the work."""
    hint = f" ({event.hint})" if event.hint else ""
    match event.checkpointed:
        case Checkpointed.YES:
            return f"saved, but {event.lost}{hint}"
        case Checkpointed.NO:
            return f"not saved: {event.lost}{hint}"
        case Checkpointed.UNKNOWN:
            lost = f": {event.lost}" if event.lost else ""
            return f"it is unknown whether it saved{lost}{hint}"


def _lost(exit: ExitFacts, kept: int | None, left: int | None) -> str:
    """Return what will be repeated, given the steps of the newest checkpoint and of the end.

    Return an empty text if nothing will be, or if it is not known.
    """
    steps = f"steps {kept}-{left}" if kept is not None and left is not None and kept < left else ""
    match exit.checkpointed:
        case Checkpointed.YES:
            return f"{steps} will be repeated" if steps and exit.killed else ""
        case Checkpointed.UNKNOWN:
            return f"{steps} may be repeated" if steps else ""
        case Checkpointed.NO if steps:
            return f"{steps} will be repeated"
        case Checkpointed.NO if kept is not None:
            return f"what it did after step {kept} will be repeated"
        case Checkpointed.NO:
            return "what it did since it last saved by itself will be repeated"


def _hint(exit: ExitFacts, leaving: LeavingSpec, age_s: float) -> str:
    """Return the hint that fits the evidence, empty if none is known.

    ``age_s`` is how old the attempt was when it was asked to leave, in seconds, or inf if it had made steps.
    """
    if exit.lost:
        return "how it ended is not known"
    if exit.swap_failure or exit.checkpointed is Checkpointed.YES:
        return ""
    hint = _hint_from_clues(exit, leaving)
    if not hint and age_s < _BEGINNING_S and (not exit.caught or _failed(exit)) and not exit.killed:
        return f"it was asked {max(0.0, age_s):.1f} s after its start, and may not have come to where it saves"
    return hint or _hint_from_exit(exit, leaving)


def _hint_from_clues(exit: ExitFacts, leaving: LeavingSpec) -> str:
    for clue in exit.clues:
        match clue:
            case Clue.CATCHES_TERM | Clue.CATCHES_USR1 | Clue.CATCHES_USR2:
                caught = _CATCHES[clue]
                return f"it does not catch {leaving.signal}, but SIG{caught}: submit it with --signal {caught}"
            case Clue.WORKERS_SIGNALLED:
                return "its data loaders were signalled, too, which fails many a script: leave out --signal-target"
            case Clue.NOT_ASKED if leaving.signal_target is SignalTarget.LEADER:
                return f"a process that catches {leaving.signal} was not asked: submit it without --signal-target"
            case Clue.NOT_ASKED:
                above = "what stands above has kept the signal to itself"
                return (
                    f"a process that catches {leaving.signal} was not asked, for {above}: --signal-target all asks all"
                )
            case Clue.LAUNCHER if _failed(exit):
                ended = f"{describe_exit(exit)} is its launcher's, and hides how the processes below it ended"
                return f"{ended}: start them with --launch ddp, or ask should_suspend() of 'import ebbtide' in them"
            case _:
                pass
    return ""


def _hint_from_exit(exit: ExitFacts, leaving: LeavingSpec) -> str:
    if not exit.caught:
        ask = "ask should_suspend() of 'import ebbtide'"
        return f"nothing of it catches {leaving.signal}: {ask}, or catch it and save"
    if exit.killed:
        return f"it was not done at the end of its grace period of {leaving.grace_s:g} s: --grace gives it more"
    if exit.acknowledged:
        return "it called suspend() without a function that saves, and has published nothing since"
    if _failed(exit):
        return f"it failed with {describe_exit(exit)}: the end of its log may say why"
    if exit.checkpointed is Checkpointed.UNKNOWN:
        return "only what a job saves in EBB_CHECKPOINT_DIR, or with 'import ebbtide', is known"
    return ""


def _failed(exit: ExitFacts) -> bool:
    return exit.signal == 0 and exit.exit_code not in (0, *SUSPENDED_EXITS)


RULES: Final = (
    Rule(
        WorkUnsaved,
        apply=about_job(_noted),
        say=lambda event: f"attempt {event.attempt} has left; {in_words(event)}",
    ),
)
