"""Indexes which nodes are silent, so that the loss of one node need not look at all others.

The question behind it is whether most nodes fell silent together (see `ebbtide_core.nodes.silence`).
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Final

from ebbtide_core.model import limits
from ebbtide_core.model.types import NodeId
from ebbtide_core.resources.books import Node

NOBODY: Final[frozenset[NodeId]] = frozenset()


class SilentNodes:
    """The silent nodes of all ``nodes``, in the order in which they fell silent. ``doubted`` are those whose silence
    may be the master's fault.
    """

    def __init__(self, nodes: Mapping[NodeId, Node]) -> None:
        self.doubted = NOBODY
        self.started = 0.0
        """When the last master started, in Unix seconds: what was connected before is silent from then on."""
        self._nodes = nodes
        self._connected: set[NodeId] = set()
        self._settled: set[NodeId] = set()
        """The doubted nodes that are connected again or known to be dead."""
        self._lent: dict[NodeId, Node] = {}
        """The other silent nodes that are lent: what they count for depends on their jobs."""
        self._since: dict[NodeId, float] = {}
        """Since when the rest of the silent nodes are, in Unix seconds."""
        self._order: list[tuple[float, NodeId]] = []
        """The same, the longest silence first."""

    def note(self, node: Node) -> None:
        """Note how ``node`` is now."""
        id = node.id
        self.forget(id)
        if node.connected:
            self._connected.add(id)
        if id in self.doubted:
            if node.connected or node.dead:
                self._settled.add(id)
        elif node.connected or node.dead:
            pass
        elif node.loan is not None:
            self._lent[id] = node
        else:
            self._since[id] = since = self._silent_since(node)
            insort(self._order, (since, id))

    def forget(self, id: NodeId) -> None:
        """Forget a node that is no more, or that is noted anew."""
        self._connected.discard(id)
        self._settled.discard(id)
        self._lent.pop(id, None)
        if (since := self._since.pop(id, None)) is not None:
            del self._order[bisect_left(self._order, (since, id))]

    def doubt(self, nodes: frozenset[NodeId]) -> None:
        """Doubt the silence of ``nodes``, and of no others."""
        changed = nodes ^ self.doubted
        self.doubted = nodes
        for id in changed:
            if (node := self._nodes.get(id)) is not None:
                self.note(node)

    def is_settled(self) -> bool:
        """Return whether at least half of the doubted nodes were heard or are known to be dead."""
        return 2 * len(self._settled) >= len(self.doubted)

    def to_doubt(self, now: float) -> tuple[frozenset[NodeId], int] | None:
        """Return the nodes that fell silent together by Unix time ``now``, with those that are doubted already.

        The second part is how many nodes count. Return None if none has come to the doubted ones, or these are not most
        of those that count.
        """
        first = bisect_left(self._order, True, key=lambda entry: now - entry[0] <= limits.TOGETHER_S)
        recent = (id for id, node in self._lent.items() if now - self._silent_since(node) <= limits.TOGETHER_S)
        lent = [id for id in recent if self._lent[id].attempts]
        more = len(self._order) - first + len(lent)
        silent = more + len(self.doubted)
        known = silent + len(self._connected) - len(self._connected & self._settled)
        if not more or known < limits.DOUBTFUL_NODES or 2 * silent <= known:
            return None
        return self.doubted.union(lent, [id for _, id in self._order[first:]]), known

    def _silent_since(self, node: Node) -> float:
        """Return since when a node that is not connected is silent, in Unix seconds.

        That is since it was lost, or heard last; the last master may have heard it until this one started.
        """
        return node.lost_since if node.lost else max(node.last_seen, self.started)
