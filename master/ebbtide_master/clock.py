"""The master's one clock."""

import time


class Clock:
    """Unix seconds that never go back: wall time at the start, then monotonic time, and never before the journal."""

    def __init__(self, not_before: float) -> None:
        self._start = max(time.time(), not_before)
        self._origin = time.monotonic()

    def now(self) -> float:
        """The time now."""
        return self._start + (time.monotonic() - self._origin)
