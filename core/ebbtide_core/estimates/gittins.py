"""The Gittins index of a job: of the lengths of earlier runs, how soon a job of that age is expected to be done.

A job that is served for a while may end meanwhile, or it may not. For each such while, the expected time that is spent
on the job is divided by the probability that it ends; the least of these quotients is the time per completion, the
inverse of the Gittins index (Gittins, *Bandit processes and dynamic allocation indices*, 1979). Among jobs of unknown
length, the order by it has the least mean flow time on one machine (Aalto, Ayesta and Righter, 2009). If all runs take
equally long, it is the time that is left; if many end early and a few take very long, it grows with the age of a job.
"""

from bisect import bisect_right, insort
from collections import deque
from itertools import accumulate
from typing import Final

LENGTHS_REMEMBERED: Final = 128
"""The last runs of one kind that count."""


class RunLengths:
    """The lengths of the last runs of one kind, in seconds."""

    __slots__ = ("_best", "_sums", "_recent", "_sorted")

    def __init__(self) -> None:
        self._recent = deque[float]()
        self._sorted: list[float] = []
        self._sums: list[float] = []
        self._best: dict[int, int] = {}
        """For each number of runs that a job has outlived, how many runs would have ended once service is best cut."""

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, length_s: float) -> None:
        """Remember a run."""
        if len(self._recent) == LENGTHS_REMEMBERED:
            self._sorted.remove(self._recent.popleft())
        self._recent.append(length_s)
        insort(self._sorted, length_s)
        self._sums.clear()
        self._best.clear()

    def time_per_completion(self, age_s: float) -> float | None:
        """Return the least expected time per completion of a job that has run ``age_s``; None if it outlived all."""
        lengths = self._sorted
        outlived = bisect_right(lengths, age_s)
        if outlived == len(lengths):
            return None
        if not self._sums:
            self._sums = [0.0, *accumulate(lengths)]
        ended = self._best.get(outlived)
        if ended is None:
            at = lengths[outlived - 1] if outlived else 0.0
            ends = range(outlived + 1, len(lengths) + 1)
            ended = self._best[outlived] = min(ends, key=lambda ended: self._quotient(outlived, ended, at))
        return self._quotient(outlived, ended, age_s)

    def _quotient(self, outlived: int, ended: int, age_s: float) -> float:
        """Return the time per completion if jobs that outlived so many runs are served until so many have ended."""
        until = self._sorted[ended - 1]
        spent = self._sums[ended] - self._sums[outlived] + (len(self._sorted) - ended) * until
        return (spent - (len(self._sorted) - outlived) * age_s) / (ended - outlived)
