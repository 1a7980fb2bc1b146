"""Events about sessions, which somebody uses."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import JobId


@frozen
class SessionUnused(Event):
    """Nobody uses it ``since`` then (Unix seconds; 0: it is used again), and it is ended in ``left_s``, or now."""

    job: JobId
    attempt: int
    since: float
    left_s: float = 0.0
