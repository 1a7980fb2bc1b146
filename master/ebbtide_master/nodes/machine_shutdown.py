"""Drains nodes that report that their machine is about to go down, for as long as they report it."""

from collections.abc import Iterator
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.resources.books import Node

ITSELF: Final = "the node itself"
"""Name of the user of such a drain; no real user can have this name."""
REASON: Final = "its machine is going down"


def facts(node: Node, leaving: bool, now: float) -> Iterator[Event]:
    """Yield the drain or its end that follows from the node's report, or nothing. ``now`` is in Unix seconds.

    A drain by a user gets an immediate deadline, and goes on when the node is back.
    """
    drain = node.drain
    if not leaving:
        if drain is not None and drain.user == ITSELF:
            yield e.NodeResumed(node.id, ITSELF)
    elif drain is None:
        yield e.NodeDrained(node=node.id, user=ITSELF, reason=REASON, deadline=now)
    elif drain.deadline is None or drain.deadline > now:
        yield e.NodeDrained(node=node.id, user=drain.user, reason=drain.reason, deadline=now, force=drain.force)
