"""Defines the event about sessions that no user uses."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import JobId


@frozen
class SessionUnused(Event):
    """The session has been unused since Unix time ``since`` (0: it is used again).

    It is ended in ``left_s`` seconds, or now if that is 0.
    """

    job: JobId
    attempt: int
    since: float
    left_s: float = 0.0
