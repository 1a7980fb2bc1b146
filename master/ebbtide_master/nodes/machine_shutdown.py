"""Nodes whose machine is about to go down: they say so themselves, and are out of service for as long as they do."""

from collections.abc import Iterator
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.resources.books import Node

ITSELF: Final = "the node itself"
"""In whose name such a node is drained; nobody else can have this one."""
REASON: Final = "its machine is going down"


def facts(node: Node, leaving: bool, now: float) -> Iterator[Event]:
    """What follows from what a node says of itself; nothing if that is known. ``now`` is a Unix time.

    Somebody else's drain is hurried up, and goes on when the node is back.
    """
    drain = node.drain
    if not leaving:
        if drain is not None and drain.user == ITSELF:
            yield e.NodeResumed(node.id, ITSELF)
    elif drain is None:
        yield e.NodeDrained(node=node.id, user=ITSELF, reason=REASON, deadline=now)
    elif drain.deadline is None or drain.deadline > now:
        yield e.NodeDrained(node=node.id, user=drain.user, reason=drain.reason, deadline=now, force=drain.force)
