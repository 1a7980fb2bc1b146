"""Events of arrays under successive halving (see `ebbtide_core.lifecycle.successive_halving`)."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import JobId


@frozen
class RungReached(Event):
    """The task has come to its next rung, which is at ``steps``, with this value; None: it is no number."""

    job: JobId
    attempt: int
    steps: int
    value: float | None


@frozen
class TaskPromoted(Event):
    """The task may go on from the last rung that it has reached."""

    job: JobId
    reason: str


@frozen
class TaskStopped(Event):
    """The task, which waits at a rung, is given up: it can never be among the best there."""

    job: JobId
    reason: str
