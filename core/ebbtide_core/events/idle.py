"""Defines the events about jobs that have GPUs and do not use them (see `ebbtide_core.lifecycle.idling`)."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import JobId


@frozen
class JobIdle(Event):
    """The attempt has used none of its GPUs since Unix time ``since``.

    It is suspended at Unix time ``suspend_at`` unless it uses them again before; None: it is only reported.
    """

    job: JobId
    attempt: int
    since: float
    suspend_at: float | None = None


@frozen
class JobBusy(Event):
    """The attempt, which was idle, uses its GPUs again."""

    job: JobId
    attempt: int
