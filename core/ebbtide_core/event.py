"""What all events have in common."""

from typing import ClassVar

from ebbtide_core.frozen import frozen


@frozen
class Event:
    """Base of all events."""

    durable: ClassVar[bool] = True
