"""What is known of a run time before the run."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate
from math import inf, sqrt
from typing import Protocol


class ReservationError(ValueError):
    """What cannot be computed, in one line."""


class Distribution(Protocol):
    """A positive random run time X, in any unit of time."""

    @property
    def low(self) -> float:
        """The least run time there is."""
        ...

    @property
    def high(self) -> float:
        """The greatest run time there is; infinite if there is none."""
        ...

    @property
    def mean(self) -> float:
        """E[X]."""
        ...

    @property
    def second_moment(self) -> float:
        """E[X^2]; infinite if it has none."""
        ...

    def sf(self, t: float) -> float:
        """P(X > t)."""
        ...

    def pdf(self, t: float) -> float:
        """The density at ``t``."""
        ...

    def quantile(self, p: float) -> float:
        """The least t with P(X <= t) >= p."""
        ...

    def mean_beyond(self, t: float) -> float:
        """E[X | X > t]."""
        ...


def deviation(distribution: Distribution) -> float:
    """The standard deviation; `ReservationError` if there is none."""
    variance = distribution.second_moment - distribution.mean**2
    if not variance < inf:
        raise ReservationError("the variance is infinite: mean-stdev and brute-force need a finite one")
    return sqrt(max(0.0, variance))


class Empirical:
    """The run times of earlier runs, each as likely as the others."""

    def __init__(self, runs: Iterable[float]) -> None:
        self.runs = sorted(runs)
        if not self.runs:
            raise ReservationError("there are no earlier runs")
        if not 0 < self.runs[0] <= self.runs[-1] < inf:
            raise ReservationError("run times are positive numbers of seconds")
        self._sums = [0.0, *accumulate(self.runs)]

    @property
    def low(self) -> float:
        """The shortest run."""
        return self.runs[0]

    @property
    def high(self) -> float:
        """The longest run."""
        return self.runs[-1]

    @property
    def mean(self) -> float:
        """The mean."""
        return self._sums[-1] / len(self.runs)

    @property
    def second_moment(self) -> float:
        """The mean square."""
        return sum(run * run for run in self.runs) / len(self.runs)

    def sf(self, t: float) -> float:
        """The share of runs that were longer than ``t``."""
        return 1 - bisect_right(self.runs, t) / len(self.runs)

    def pdf(self, t: float) -> float:
        """Runs are points."""
        raise ReservationError("brute-force needs a density, which a history does not have: use equal-probability")

    def quantile(self, p: float) -> float:
        """The run that is at least as long as the share ``p`` of all."""
        index = bisect_left(range(1, len(self.runs) + 1), p * len(self.runs) * (1 - 1e-12))
        return self.runs[min(index, len(self.runs) - 1)]

    def mean_beyond(self, t: float) -> float:
        """The mean of the runs that were longer than ``t``."""
        first = bisect_right(self.runs, t)
        if first == len(self.runs):
            return self.high
        return (self._sums[-1] - self._sums[first]) / (len(self.runs) - first)
