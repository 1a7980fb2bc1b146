"""Drains nodes that report that their machine is about to go down, for as long as they report it.

If they report when it goes down, their end is known instead, and their jobs leave in time.
"""

from collections.abc import Iterator
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.model import limits
from ebbtide_core.resources.books import Node
from ebbtide_protos.v1 import agent_pb2

from ebbtide_master.nodes.sessions import AgentSession

ITSELF: Final = "the node itself"
"""Name of the user of such a drain; no real user can have this name."""
CLOCKS_DIFFER_S: Final = 1.0
"""Seconds between two times that count as the same."""
REASON: Final = "its machine is going down"


def announced(session: AgentSession, node: Node, heartbeat: agent_pb2.Heartbeat, now: float) -> Iterator[Event]:
    """Yield what follows if it was announced on the machine of ``node`` when it is gone, or that was taken back."""
    until = heartbeat.until if heartbeat.HasField("until") and 0 < heartbeat.until <= limits.MAX_BEGIN else None
    before, session.until = session.until, until
    if until == before:
        return
    if until is None:
        if _is_known(node, before):  # else a user has said something else since
            yield e.LoanChanged(node.id, None, ITSELF)
    elif not _is_known(node, until):
        yield e.LoanChanged(node.id, max(0.0, until - now), ITSELF)


def _is_known(node: Node, until: float | None) -> bool:
    return node.loan is not None and until is not None and abs(node.loan.until - until) < CLOCKS_DIFFER_S


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
