"""Defines the events of arrays under successive halving (see `ebbtide_core.lifecycle.successive_halving`)."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import JobId


@frozen
class RungReached(Event):
    """The task reached its next rung, at ``steps`` steps, with this value of the metric; None: it is not a number."""

    job: JobId
    attempt: int
    steps: int
    value: float | None


@frozen
class TaskPromoted(Event):
    """The task may go on from the last rung that it reached."""

    job: JobId
    reason: str


@frozen
class TaskStopped(Event):
    """The task, which waits at a rung, is stopped, because it can never be among the best there."""

    job: JobId
    reason: str
