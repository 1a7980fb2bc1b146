"""The Gittins index of a job: how soon it is expected to be done, by its age and the lengths of earlier runs.

A job that is served for a while may end meanwhile, or it may not. For each such while, the expected time that the job
is served is divided by the probability that it ends. The least of these quotients is its *time per completion*, the
inverse of the Gittins index (Gittins, *Bandit processes and dynamic allocation indices*, 1979). Among jobs of unknown
length, serving the one with the least has the least mean flow time on one machine (Aalto, Ayesta and Righter, *On the
Gittins index in the M/G/1 queue*, 2009). If all runs take equally long, it is the time that is left. If most runs end
early and a few take very long, it grows with the age.
"""

from bisect import bisect_right, insort
from collections import deque
from itertools import accumulate
from typing import Final

LENGTHS_REMEMBERED: Final = 128
"""The last runs of one kind that count."""
LEAST_RUNS: Final = 5
"""The runs that have to have ended before they tell anything."""


class RunLengths:
    """The lengths of the last runs of one kind, in seconds; ``going`` counts the jobs of the kind that have started."""

    __slots__ = ("_best", "_recent", "_sorted", "_sums", "ended", "going")

    def __init__(self) -> None:
        self.ended = 0
        self.going = 0
        self._recent = deque[float]()
        self._sorted: list[float] = []
        self._sums: list[float] = []
        """The sums of the first lengths of ``_sorted``; empty until they are needed."""
        self._best: dict[int, int] = {}
        """For each number of runs that a job has outlived: how many have ended when its best while is over."""

    def add(self, length_s: float) -> None:
        """Remember a run that has ended."""
        self.ended += 1
        if len(self._recent) == LENGTHS_REMEMBERED:
            del self._sorted[bisect_right(self._sorted, self._recent.popleft()) - 1]
        self._recent.append(length_s)
        insort(self._sorted, length_s)
        self._sums.clear()
        self._best.clear()

    @property
    def tells(self) -> bool:
        """Whether enough runs have ended: the first ones that end are the short ones, until as many ended as go on."""
        return self.ended >= LEAST_RUNS and self.ended >= self.going

    def time_per_completion(self, age_s: float) -> float | None:
        """Return the time per completion of a job that has run ``age_s``; None if it has outlived all runs."""
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
        """Return the quotient for the while after which ``ended`` of all runs have ended."""
        sums, lengths = self._sums, self._sorted
        served = sums[ended] - sums[outlived] + (len(lengths) - ended) * lengths[ended - 1]
        return (served - (len(lengths) - outlived) * age_s) / (ended - outlived)
