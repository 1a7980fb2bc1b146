"""Defines the base class of all events (see `ebbtide_core.events`)."""

from typing import ClassVar

from ebbtide_core.model.frozen import frozen


@frozen
class Event:
    """The base class of all events; ``durable`` says whether the event is written to the journal."""

    durable: ClassVar[bool] = True
