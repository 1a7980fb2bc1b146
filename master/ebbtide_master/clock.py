"""The only clock of the master."""

import time
from typing import Final

SLEWED_S: Final = 60.0
"""While the clock is ahead of the machine's by at most this many seconds, it runs slower until both agree."""
BELIEVED_AFTER_S: Final = 60.0
"""After the machine's clock has been behind by more than `SLEWED_S` for this many seconds, its time is taken over."""
SLOWER: Final = 0.5
"""Part of the time that passes by which the clock falls back while it runs slower."""
NEVER_SET: Final = 1.7e9
"""Unix time in November 2023: a machine's clock that shows an earlier time was never set."""


class Clock:
    """Shows Unix seconds: wall time at the start, then monotonic time, and no time before the end of the journal.

    So a leap of the machine's clock ends nothing too early. A clock that is ahead of the machine's is wrong, and would
    let ``--begin`` and reservations come too early, so it is corrected soon, even if it has to go back. The journal's
    lines are in the order of their numbers, not of their times.
    """

    def __init__(self, not_before: float) -> None:
        self._shown = max(time.time(), not_before)
        self._then = time.monotonic()
        self._ahead_since: float | None = None

    def now(self) -> float:
        """Return the time now, in Unix seconds."""
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
