"""Remembers what supplies have said of themselves, for those who ask why a job waits."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.request_checks import check_words

HEARD_S: Final = 60.0
"""Seconds after which a supply that was not heard again is left out; it is heard every few seconds."""
MOST: Final = 64
"""Supplies that are remembered, those that were heard last."""
MAX_NAME_LENGTH: Final = 64
MAX_WORDS_LENGTH: Final = 200


@dataclass(frozen=True, slots=True)
class _Heard:
    pool: str
    at: float
    status: client_pb2.SupplyStatus


@dataclass(slots=True)
class HeardSupplies:
    """The status of each supply by its name, with the Unix time at which it was heard."""

    _heard: dict[str, _Heard] = field(default_factory=dict)

    def note(self, pool: str, status: client_pb2.SupplyStatus, now: float) -> None:
        """Note how a supply is that borrows nodes for ``pool``. Raises `SpecError`."""
        check_words("supply.name", status.name, MAX_NAME_LENGTH)
        for name in ("reason", "not_asking"):
            check_words(f"supply.{name}", getattr(status, name), MAX_WORDS_LENGTH)
        self._heard.pop(status.name, None)
        self._heard[status.name] = _Heard(pool, now, status)
        while len(self._heard) > MOST:
            del self._heard[next(iter(self._heard))]

    def of_pool(self, pool: str, now: float) -> Iterator[client_pb2.SupplyStatus]:
        """Yield the status of each supply of ``pool`` that was heard lately, by name."""
        for _, heard in sorted(self._heard.items()):
            if heard.pool == pool and now - heard.at <= HEARD_S:
                yield heard.status
