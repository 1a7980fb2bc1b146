"""Keeps sums over time, so that the sum of any window takes two look-ups, however much happened in it."""

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

LATE_AT_ONCE: Final = 1024
"""Late changes that are put in order at once."""


class Integral:
    """The integral of a rate over Unix time, which is 0 before the first change of the rate.

    Changes usually come in the order of their times; late ones are put in order a thousand at a time, or when somebody
    asks. Each time at which the rate changes takes 24 bytes.
    """

    __slots__ = ("_late", "_rates", "_sums", "_times")

    def __init__(self) -> None:
        self._times = array("d", (0.0,))
        self._rates = array("d", (0.0,))
        """The rate from each time on."""
        self._sums = array("d", (0.0,))
        """The integral up to each time."""
        self._late: list[tuple[float, float]] = []

    def change(self, time: float, by: float) -> None:
        """Change the rate by ``by`` from Unix time ``time`` on."""
        times = self._times
        last = times[-1]
        if time > last:
            rates, sums = self._rates, self._sums
            rate = rates[-1]
            times.append(time)
            sums.append(sums[-1] + rate * (time - last))
            rates.append(rate + by)
        elif time == last:
            self._rates[-1] += by
        else:
            self._late.append((time, by))
            if len(self._late) >= LATE_AT_ONCE:
                self._put_in_order()

    def between(self, start: float, end: float) -> float:
        """Return the integral from ``start`` to ``end``, both in Unix seconds."""
        if self._late:
            self._put_in_order()
        return self._until(end) - self._until(start)

    def _until(self, time: float) -> float:
        at = bisect_right(self._times, time) - 1
        return self._sums[at] + self._rates[at] * (time - self._times[at]) if at >= 0 else 0.0

    def _put_in_order(self) -> None:
        """Take back the changes after the first late one, and make them again with the late ones among them."""
        changes, self._late = sorted(self._late), []
        times, rates = self._times, self._rates
        first = max(1, bisect_right(times, changes[0][0]))
        before = rates[first - 1]
        for time, rate in zip(times[first:], rates[first:], strict=True):
            changes.append((time, rate - before))
            before = rate
        del times[first:], rates[first:], self._sums[first:]
        changes.sort()
        for time, by in changes:
            self.change(time, by)


class Presence:
    """Counts who was present in a window; who left and came back within it counts once.

    Entering and leaving come in the order of their times.
    """

    __slots__ = ("_away", "_came", "_left")

    def __init__(self) -> None:
        self._came, self._left = array("d"), array("d")
        self._away: list[tuple[float, float]] = []
        """From when to when those who came back were away."""

    def enter(self, now: float, left: float | None = None) -> None:
        """Count one more from Unix time ``now`` on, who had left at ``left`` if this was its place before."""
        self._came.append(now)
        if left is not None:
            self._away.append((left, now))

    def leave(self, now: float, came: float, left: float | None = None) -> None:
        """Stop counting who entered at ``came``, having left at ``left`` before; who stays for no time never came."""
        if now > came:
            self._left.append(now)
            return
        self._came.pop()
        if left is not None:
            self._away.remove((left, came))

    def count(self, start: float, end: float) -> int:
        """Return how many were present at any time between ``start`` and ``end``, both in Unix seconds."""
        if start >= end:
            return 0
        twice = sum(1 for left, back in self._away if start < left and back < end)
        return bisect_left(self._came, end) - bisect_right(self._left, start) - twice
