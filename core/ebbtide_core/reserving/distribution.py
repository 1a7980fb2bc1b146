"""Describes what is known of a run time before the run."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate
from math import inf, sqrt
from typing import Protocol


class ReservationError(ValueError):
    """Raised for what cannot be computed; the message is one line."""


class Distribution(Protocol):
    """A positive random run time X, in any unit of time."""

    @property
    def low(self) -> float:
        """The least possible run time."""
        ...

    @property
    def high(self) -> float:
        """The greatest possible run time; infinite if there is none."""
        ...

    @property
    def mean(self) -> float:
        """E[X]."""
        ...

    @property
    def second_moment(self) -> float:
        """E[X^2]; infinite if X has no second moment."""
        ...

    def sf(self, t: float) -> float:
        """Return P(X > t)."""
        ...

    def pdf(self, t: float) -> float:
        """Return the density at ``t``."""
        ...

    def quantile(self, p: float) -> float:
        """Return the least t with P(X <= t) >= p."""
        ...

    def mean_beyond(self, t: float) -> float:
        """Return E[X | X > t]."""
        ...


def deviation(distribution: Distribution) -> float:
    """Return the standard deviation; raise `ReservationError` if it is infinite."""
    variance = distribution.second_moment - distribution.mean**2
    if not variance < inf:
        raise ReservationError("the variance is infinite: mean-stdev and brute-force need a finite one")
    return sqrt(max(0.0, variance))


class Empirical:
    """The distribution in which the run times of earlier runs are equally likely."""

    def __init__(self, runs: Iterable[float]) -> None:
        self.runs = sorted(runs)
        if not self.runs:
            raise ReservationError("there are no earlier runs")
        if not 0 < self.runs[0] <= self.runs[-1] < inf:
            raise ReservationError("run times are positive numbers of seconds")
        self._sums = [0.0, *accumulate(self.runs)]

    @property
    def low(self) -> float:
        """The shortest run time."""
        return self.runs[0]

    @property
    def high(self) -> float:
        """The longest run time."""
        return self.runs[-1]

    @property
    def mean(self) -> float:
        """The mean run time."""
        return self._sums[-1] / len(self.runs)

    @property
    def second_moment(self) -> float:
        """The mean square of the run times."""
        return sum(run * run for run in self.runs) / len(self.runs)

    def sf(self, t: float) -> float:
        """Return the fraction of runs that were longer than ``t``."""
        return 1 - bisect_right(self.runs, t) / len(self.runs)

    def pdf(self, t: float) -> float:
        """Raise `ReservationError`, because a distribution of single points has no density."""
        raise ReservationError("brute-force needs a density, which a history does not have: use equal-probability")

    def quantile(self, p: float) -> float:
        """Return the shortest run time that is at least as long as a fraction ``p`` of all."""
        index = bisect_left(range(1, len(self.runs) + 1), p * len(self.runs) * (1 - 1e-12))
        return self.runs[min(index, len(self.runs) - 1)]

    def mean_beyond(self, t: float) -> float:
        """Return the mean of the runs that were longer than ``t``; the longest run time if none was."""
        first = bisect_right(self.runs, t)
        if first == len(self.runs):
            return self.high
        return (self._sums[-1] - self._sums[first]) / (len(self.runs) - first)
