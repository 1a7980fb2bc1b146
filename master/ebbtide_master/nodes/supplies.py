"""Remembers what supplies have said of themselves, and whether jobs wait for more of their nodes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ebbtide_protos.v1 import client_pb2

HEARD_S: Final = 60.0
"""Seconds after which a supply that was not heard again is left out; it is heard every few seconds."""
MOST: Final = 64
"""Supplies that are remembered, those that were heard last."""


@dataclass(frozen=True, slots=True)
class _Heard:
    pool: str
    at: float
    status: client_pb2.SupplyStatus
    beside: frozenset[str]


@dataclass(slots=True)
class HeardSupplies:
    """The status of each supply by its name, with the Unix time at which it was heard."""

    _heard: dict[str, _Heard] = field(default_factory=dict)

    def note(self, pool: str, status: client_pb2.SupplyStatus, beside: Iterable[str], now: float) -> None:
        """Note how a supply is that borrows nodes for ``pool``, and which nodes jobs need ``beside`` those to come."""
        self._heard.pop(status.name, None)
        self._heard[status.name] = _Heard(pool, now, status, frozenset(beside))
        while len(self._heard) > MOST:
            del self._heard[next(iter(self._heard))]

    def needs(self, node: str, name: str, now: float) -> bool:
        """Return whether a supply asks for more nodes, because jobs wait that need them and ``node`` together."""
        heard = self._heard.get(name)
        return heard is not None and now - heard.at <= HEARD_S and node in heard.beside and not heard.status.not_asking

    def of_pool(self, pool: str, now: float) -> Iterator[client_pb2.SupplyStatus]:
        """Yield the status of each supply of ``pool`` that was heard lately, by name."""
        for _, heard in sorted(self._heard.items()):
            if heard.pool == pool and now - heard.at <= HEARD_S:
                yield heard.status
