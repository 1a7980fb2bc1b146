"""Remembers answers, so that each is computed only once."""

from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

T = TypeVar("T")
MOST_CACHED: Final = 4096


class Cache:
    """Answers by what they depend on; beyond `MOST_CACHED`, all are forgotten, so that memory stays bounded."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the answer for ``key``, calling ``compute`` if it is not known; it must depend on ``key`` only."""
        found: T | None = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_CACHED:
                self._known.clear()
            found = self._known[key] = compute()
        return found

    def clear(self) -> None:
        """Forget all answers."""
        self._known.clear()
