"""Counts the values that nodes have, so that a change of one node costs the same however many others there are."""

from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from ebbtide_core.model.types import NodeId

Value = TypeVar("Value", str, int)


class NodeValues(Generic[Value]):
    """The values that at least one node has. ``changes`` counts how often a value came or went."""

    def __init__(self) -> None:
        self.changes = 0
        self._counts: dict[Value, int] = {}
        self._of: dict[NodeId, Collection[Value]] = {}

    def note(self, node: NodeId, values: Collection[Value]) -> None:
        """Note that ``node`` has ``values`` now, each of them once, in place of those that it had."""
        before = self._of.get(node, ())
        if values == before:
            return
        for value in values:
            self._counts[value] = self._counts.get(value, 0) + 1
            self.changes += self._counts[value] == 1
        for value in before:
            self._counts[value] -= 1
            if not self._counts[value]:
                del self._counts[value]
                self.changes += 1
        if values:
            self._of[node] = values
        else:
            del self._of[node]

    def __contains__(self, value: Value) -> bool:
        return value in self._counts

    def __iter__(self) -> Iterator[Value]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)
