"""Decides which events are moments that users are notified of."""

from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.job import gang
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.lifecycle.unsaved_work import in_words
from ebbtide_core.model.notice_rules import Moment
from ebbtide_core.model.types import Checkpointed, HeldBy, JobState, RefusalCause, StopCause
from ebbtide_core.planning.draft import where
from ebbtide_core.views.narrate import narrate

_ENDINGS: Final = {
    JobState.COMPLETED: Moment.COMPLETED,
    JobState.FAILED: Moment.FAILED,
    JobState.CANCELLED: Moment.CANCELLED,
}


def moment_of(job: Job, event: Event, at: float) -> tuple[Moment, str] | None:
    """Return the moment that ``event``, recorded at Unix time ``at``, is for ``job``, and its text; None if none.

    Call this once the event was applied to ``job``, at once or later.
    """
    match event:
        case e.LogMatched():
            return Moment.LOG, f"printed {event.match.line!r}"
        case e.JobHeld(by=HeldBy.SYSTEM):
            return Moment.HELD, event.reason
        case e.JobIdle():
            return Moment.IDLE, narrate(event)
        case e.WorkUnsaved(checkpointed=Checkpointed.NO):
            return Moment.UNSAVED, in_words(event)
        case e.AttemptStarted():
            return _started(job, event)
        case e.AttemptSwapped(note=""):
            return Moment.SUSPENDED, _why_stopped(job.attempts[event.attempt - 1])
        case e.CancelRequested() | e.DependencyFailed() | e.TaskStopped():
            return _ended(job, at)
        case e.AttemptExited() | e.AttemptRefused():
            return _ended(job, at) or _left(job, event, at)
        case _:
            return None


def _started(job: Job, event: e.AttemptStarted) -> tuple[Moment, str] | None:
    """Return the moment of a start and its text; of an attempt on several nodes, only the first node's start counts."""
    allocation = job.attempts[event.attempt - 1].allocation
    if event.node and event.node != allocation.node_ids[0]:
        return None
    again = event.swaps or any(attempt.first_started is not None for attempt in job.attempts[: event.attempt - 1])
    came_from = "" if event.resumed_step is None else f" from step {event.resumed_step}"
    return (Moment.RESUMED if again else Moment.STARTED), f"{where(allocation)}{came_from}"


def _ended(job: Job, at: float) -> tuple[Moment, str] | None:
    return (_ENDINGS[job.end.state], job.reason) if job.end is not None and job.end.at == at else None


def _left(job: Job, event: e.AttemptExited | e.AttemptRefused, at: float) -> tuple[Moment, str] | None:
    """Return the moment of an attempt's end that is not its job's: the job is held because it cannot resume, or waits.

    A job of which a node failed was not suspended: it is tried again, as one on a single node that failed is.
    """
    attempt = job.attempts[event.attempt - 1]
    if attempt.end is None or attempt.end.at != at:
        return None
    refused = gang.refusal(attempt) if attempt.gang is not None else event
    if isinstance(refused, e.AttemptRefused) and refused.cause is RefusalCause.NO_CHECKPOINT:
        return (Moment.HELD, f"held: {refused.reason}") if job.held_by is HeldBy.SYSTEM else None
    if attempt.started is None or attempt.stop is None or attempt.stop.cause is StopCause.BROKEN:
        return None
    return Moment.SUSPENDED, _why_stopped(attempt)


def _why_stopped(attempt: Attempt) -> str:
    if attempt.stop is not None:
        return attempt.stop.reason
    return attempt.end.outcome if attempt.end is not None else ""
