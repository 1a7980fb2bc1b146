"""Defines the events about a cluster's configuration and its clock; part of `ebbtide_core.events`."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen


@frozen
class ConfigurationRead(Event):
    """The master read its configuration again, and ``sections`` of it changed.

    ``user`` asked for it; empty: a signal did. The event changes no state, because the configuration is not part of a
    journal.
    """

    sections: tuple[str, ...]
    user: str = ""


@frozen
class ClockSetBack(Event):
    """The master's clock had been ahead, and was set back by ``by_s`` seconds."""

    by_s: float
