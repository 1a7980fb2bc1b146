"""Defines the events about the administration of a cluster; part of `ebbtide_core.events`."""

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
