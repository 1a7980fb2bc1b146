"""Facts about how a cluster is administered; part of `ebbtide_core.events`."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen


@frozen
class ConfigurationRead(Event):
    """The master goes by these ``sections`` of its configuration anew, because ``user`` asked for it; empty: a signal.

    It changes no state: like the configuration itself, what follows from it is no part of a journal.
    """

    sections: tuple[str, ...]
    user: str = ""
