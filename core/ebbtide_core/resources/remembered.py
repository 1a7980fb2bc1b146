"""Answers that are worked out once."""

from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

T = TypeVar("T")
MOST_REMEMBERED: Final = 4096


class Remembered:
    """Answers by what they depend on; with too many of them, all are forgotten."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def get(self, key: Hashable, work_out: Callable[[], T]) -> T:
        """What ``work_out`` found for ``key``, which it always finds for it; asked once."""
        found: T | None = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            found = self._known[key] = work_out()
        return found

    def clear(self) -> None:
        """Forget all of them."""
        self._known.clear()
