"""Estimates the cost of a sequence on drawn run times, to compare it with the exact cost."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from ebbtide_core.reserving.cost import CostModel
from ebbtide_core.reserving.distribution import Distribution, Empirical
from ebbtide_core.reserving.sequences import first_reservations, recurrence

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class SampleMean:
    """The mean of samples and its standard error."""

    mean: float
    stderr: float


def draw(distribution: Distribution, n: int, rng: np.random.Generator) -> Floats:
    """Draw ``n`` run times."""
    if isinstance(distribution, Empirical):
        return rng.choice(np.array(distribution.runs), size=n)
    return np.array([distribution.quantile(p) for p in rng.random(n)])


def costs(sequence: Iterable[float], runs: Floats, cost: CostModel) -> Floats:
    """Return the cost of each run; the sequence is followed until it covers the longest run."""
    longest = float(runs.max())
    reservations = _covering(sequence, longest)
    paid = np.concatenate(([0.0], np.cumsum((cost.alpha + cost.beta) * reservations + cost.gamma)))
    place = np.searchsorted(reservations, runs)
    return np.asarray(paid[place] + cost.alpha * reservations[place] + cost.beta * runs + cost.gamma)


def _covering(sequence: Iterable[float], longest: float) -> Floats:
    iterator = iter(sequence)
    last: list[float] = []
    below = list(takewhile(lambda reserved: reserved < longest, _peeked(iterator, last)))
    return np.asarray(below + last, dtype=np.float64)


def _peeked(iterator: Iterable[float], last: list[float]) -> Iterable[float]:
    """Yield the same values, and keep the newest in ``last``, because `takewhile` discards the one that it stops at."""
    for value in iterator:
        last[:] = [value]
        yield value


def estimate(sequence: Iterable[float], runs: Floats, cost: CostModel) -> SampleMean:
    """Return the mean cost of ``runs``."""
    sample = costs(sequence, runs, cost)
    return SampleMean(
        float(sample.mean()), float(sample.std(ddof=1) / np.sqrt(sample.size)) if sample.size > 1 else 0.0
    )


def brute_force_by_sampling(
    distribution: Distribution, cost: CostModel, samples: int, rng: np.random.Generator
) -> float:
    """Return the least mean cost over all first reservations, each on ``samples`` fresh runs (the paper's brute force).

    The least of 5000 noisy means lies below the true least cost. Runs are picked from a pool of 200 times as many,
    which is as good as drawing each.
    """
    pool = draw(distribution, 200 * samples, rng)
    best = np.inf
    for first in first_reservations(distribution, cost):
        runs = pool[rng.integers(0, pool.size, samples)]
        longest = float(runs.max())
        sequence = recurrence(distribution, cost, first, until=distribution.sf(longest))
        if sequence is not None and sequence[-1] >= longest:
            best = min(best, float(costs(sequence, runs, cost).mean()))
    return best
