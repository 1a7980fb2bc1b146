"""The master's one clock."""

import time
from typing import Final

SLEWED_S: Final = 60.0
"""If it is ahead of the machine's clock by less, it runs slower until it is not."""
BELIEVED_AFTER_S: Final = 60.0
"""For so long the machine's clock has to say that it is earlier by more than that; then it is."""
SLOWER: Final = 0.5
NEVER_SET: Final = 1.7e9
"""A machine's clock that shows an earlier time (November 2023) was never set."""


class Clock:
    """Unix seconds: wall time at the start, then monotonic time, and not before the journal.

    So no leap of the machine's clock makes anything end too early. But where it is ahead of that, it is so by mistake,
    and would have ``--begin`` and reservations be over before their time: soon it shows the same, if it has to go back
    for it. The order of the journal's lines is that of their numbers.
    """

    def __init__(self, not_before: float) -> None:
        self._shown = max(time.time(), not_before)
        self._then = time.monotonic()
        self._ahead_since: float | None = None

    def now(self) -> float:
        """The time now."""
        moment, real = time.monotonic(), time.time()
        passed, self._then = moment - self._then, moment
        self._shown += passed
        ahead = self._shown - real
        if ahead <= SLEWED_S:
            self._ahead_since = None
            self._shown -= max(0.0, min(SLOWER * passed, ahead))
        elif real >= NEVER_SET:
            self._ahead_since = moment if self._ahead_since is None else self._ahead_since
            if moment - self._ahead_since >= BELIEVED_AFTER_S:
                self._shown, self._ahead_since = real, None
        return self._shown
