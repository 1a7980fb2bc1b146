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
from typing import Final

from ebbtide_core.model.native import mypyc_attr

LENGTHS_REMEMBERED: Final = 128
"""The last runs of one kind that count."""
LEAST_RUNS: Final = 5
"""The runs that have to have ended before they tell anything."""
LEAST_ALIKE: Final = 2
"""The same for runs that their user has declared to be alike, however many of them go on."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RunLengths:
    """The lengths of the last runs of one kind, in seconds; ``going`` counts the jobs of the kind that have started.

    ``alike``: their user has declared them to be a group.
    """

    def __init__(self, alike: bool = False) -> None:
        self.ended = 0
        self._alike = alike
        self.going = 0
        self._recent = deque[float]()
        self._sorted: list[float] = []
        self._served: list[float] = []
        """For each number of runs that have ended: how long all runs together were served by then; empty if stale."""
        self._until: list[int] = []
        """For each number of runs that a job has outlived: how many have ended when its best while is over."""

    def add(self, length_s: float) -> None:
        """Remember a run that has ended."""
        self.ended += 1
        if len(self._recent) == LENGTHS_REMEMBERED:
            del self._sorted[bisect_right(self._sorted, self._recent.popleft()) - 1]
        self._recent.append(length_s)
        insort(self._sorted, length_s)
        self._served.clear()

    @property
    def tells(self) -> bool:
        """Whether enough runs have ended: the first ones that end are the short ones, until as many ended as go on."""
        return self.ended >= LEAST_ALIKE if self._alike else self.ended >= max(LEAST_RUNS, self.going)

    def time_per_completion(self, age_s: float) -> float | None:
        """Return the time per completion of a job that has run ``age_s``; None if it has outlived all runs."""
        lengths = self._sorted
        outlived, count = bisect_right(lengths, age_s), len(lengths)
        if outlived == count:
            return None
        if not self._served:
            self._find_whiles()
        until = self._until[outlived]
        since_last = age_s - (lengths[outlived - 1] if outlived else 0.0)
        served = self._served[until] - self._served[outlived] - (count - outlived) * since_last
        return served / (until - outlived)

    def _find_whiles(self) -> None:
        """Find the best while after each run.

        Of the points (runs that have ended, time served), the best while leads to the next vertex of the lower convex
        hull of the points from there on, because it has the least slope.
        """
        count, total = len(self._sorted), 0.0
        served, until = [0.0], [count] * count
        for ended, length_s in enumerate(self._sorted, 1):
            total += length_s
            served.append(total + (count - ended) * length_s)
        for outlived in range(count - 1, -1, -1):
            here, end = served[outlived], outlived + 1
            slope = served[end] - here
            while end < count and (further := (served[until[end]] - here) / (until[end] - outlived)) < slope:
                end, slope = until[end], further
            until[outlived] = end
        self._served, self._until = served, until
