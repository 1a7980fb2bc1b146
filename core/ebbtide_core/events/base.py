"""What all events are; see `ebbtide_core.events`."""

from typing import ClassVar

from ebbtide_core.model.frozen import frozen


@frozen
class Event:
    """Base of all events."""

    durable: ClassVar[bool] = True
