"""Computes sequences of reservations by the strategies of seed 002."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice, pairwise
from math import inf, isfinite
from types import MappingProxyType
from typing import Final

from ebbtide_core.reserving.cost import Checkpointing, CostModel, expected_cost
from ebbtide_core.reserving.distribution import Distribution, ReservationError, deviation

CANDIDATES: Final = 5000
"""First reservations that brute force tries."""
TAIL: Final = 1e-7
"""The probability that is cut off when an infinite distribution is discretised."""

Strategy = Callable[[Distribution, CostModel, int], Iterator[float]]
"""Yields increasing reservations, up to the longest run or forever; its last argument is the paper's n."""


def mean_by_mean(distribution: Distribution, cost: CostModel, n: int) -> Iterator[float]:
    """Yield t_1 = E[X], t_i = E[X | X > t_{i-1}]."""
    return _to_the_end(distribution, _from_conditional_means(distribution))


def _from_conditional_means(distribution: Distribution) -> Iterator[float]:
    reserved = distribution.mean
    while True:
        yield reserved
        reserved = distribution.mean_beyond(reserved)


def mean_stdev(distribution: Distribution, cost: CostModel, n: int) -> Iterator[float]:
    """Yield t_i = E[X] + (i - 1)·sd, with sd the standard deviation."""
    step = deviation(distribution)
    return _to_the_end(distribution, (distribution.mean + i * step for i in count()))


def mean_doubling(distribution: Distribution, cost: CostModel, n: int) -> Iterator[float]:
    """Yield t_i = 2^(i-1)·E[X]."""
    return _to_the_end(distribution, (distribution.mean * 2.0**i for i in range(1000)))


def median_by_median(distribution: Distribution, cost: CostModel, n: int) -> Iterator[float]:
    """Yield t_i = Q(1 - 2^-i): half of the runs that are left end in each reservation."""
    return _to_the_end(distribution, (distribution.quantile(1 - 2.0**-i) for i in range(1, 50)))


def equal_time(distribution: Distribution, cost: CostModel, n: int) -> Iterator[float]:
    """Yield the best sequence for the distribution cut into ``n`` steps of equal length."""
    low, high = distribution.low, _end(distribution)
    values = [low + (high - low) * i / n for i in range(1, n + 1)]
    beyond = [1.0, *(distribution.sf(value) for value in values)]
    weights = [before - after for before, after in pairwise(beyond)]
    return _to_the_end(distribution, best_for(values, weights, cost))


def equal_probability(distribution: Distribution, cost: CostModel, n: int) -> Iterator[float]:
    """Yield the best sequence for the distribution cut into ``n`` steps of equal probability."""
    covered = 1 - distribution.sf(_end(distribution))
    values = [distribution.quantile(covered * i / n) for i in range(1, n + 1)]
    return _to_the_end(distribution, best_for(values, [1 / n] * n, cost))


def brute_force(distribution: Distribution, cost: CostModel, n: int) -> Iterator[float]:
    """Yield the sequence of the optimality recurrence from that of `CANDIDATES` first reservations that costs least."""
    best: tuple[float, list[float]] | None = None
    for first in first_reservations(distribution, cost):
        sequence = recurrence(distribution, cost, first)
        if sequence is not None:
            price = expected_cost(_to_the_end(distribution, sequence), distribution, cost)
            if best is None or price < best[0]:
                best = price, sequence
    if best is None:
        raise ReservationError("no first reservation leads to an increasing sequence")
    return _to_the_end(distribution, best[1])


def first_reservations(distribution: Distribution, cost: CostModel) -> list[float]:
    """Return `CANDIDATES` steps of the range where the optimal t_1 lies: above ``low``, at most A_1 of the paper."""
    if cost.alpha == 0:
        raise ReservationError("--alpha: must be above 0 for brute-force, whose recurrence divides by it")
    low, mean = distribution.low, distribution.mean
    if not isfinite(distribution.second_moment):
        raise ReservationError("the variance is infinite: mean-stdev and brute-force need a finite one")
    spread = (cost.alpha + cost.beta) / (2 * cost.alpha) * (distribution.second_moment - low**2)
    bound = mean + 1 + spread + (cost.alpha + cost.beta + cost.gamma) / cost.alpha * (mean - low)
    width = min(distribution.high, bound) - low
    return [low + width * i / CANDIDATES for i in range(1, CANDIDATES + 1)]


def recurrence(distribution: Distribution, cost: CostModel, first: float, until: float = 1e-9) -> list[float] | None:
    """Return all t_i, each from t_{i-1} and t_{i-2} (solution 1), until P(X > t) <= ``until``.

    Return None if they stop increasing, or if the density is 0 at one of them.
    """
    ratio, setup = cost.beta / cost.alpha, cost.gamma / cost.alpha
    sequence = [first]
    before, beyond = 1.0, distribution.sf(first)
    while beyond > until:
        density = distribution.pdf(sequence[-1])
        if density <= 0:
            return None
        following = before / density + ratio * (beyond / density - sequence[-1]) - setup
        if not following > sequence[-1]:
            return None
        sequence.append(min(following, distribution.high))
        before, beyond = beyond, distribution.sf(sequence[-1])
    return sequence


STRATEGIES: Final[Mapping[str, Strategy]] = MappingProxyType(
    {
        "brute-force": brute_force,
        "equal-time": equal_time,
        "equal-probability": equal_probability,
        "mean-by-mean": mean_by_mean,
        "mean-stdev": mean_stdev,
        "mean-doubling": mean_doubling,
        "median-by-median": median_by_median,
    }
)


def _end(distribution: Distribution) -> float:
    return distribution.high if isfinite(distribution.high) else distribution.quantile(1 - TAIL)


def _to_the_end(distribution: Distribution, sequence: Iterable[float]) -> Iterator[float]:
    """Yield ``sequence`` while it increases below the longest run, then that run; without one, double forever."""
    last = 0.0
    for reserved in sequence:
        if not last < reserved < distribution.high:
            break
        yield reserved
        last = reserved
    if isfinite(distribution.high):
        yield distribution.high
        return
    while (last := last * 2) < inf:
        yield last


# --- the dynamic programmes for discrete distributions ---


def best_for(values: Sequence[float], weights: Sequence[float], cost: CostModel) -> list[float]:
    """Return the cheapest sequence if run times are ``values`` (increasing) with ``weights``; O(n^2) (solution 2)."""
    merged = _merged(values, weights)

    def reserve(i: int, j: int, mass: float, left: float, first_moment: float) -> float:
        reserved = merged[j][0]
        return mass * (cost.alpha * reserved + cost.gamma) + cost.beta * (first_moment + left * reserved)

    return _programme(merged, reserve)


def best_checkpointed(
    values: Sequence[float], weights: Sequence[float], cost: CostModel, checkpoint: Checkpointing
) -> list[float]:
    """Do as `best_for` if all reservations but the last end with a checkpoint; return the work to have done by each."""
    merged = _merged(values, weights)
    last = len(merged) - 1

    def reserve(i: int, j: int, mass: float, left: float, first_moment: float) -> float:
        begun, load = (merged[i - 1][0], checkpoint.load) if i else (0.0, 0.0)
        length = load + merged[j][0] - begun + (checkpoint.save if j < last else 0.0)
        ended = first_moment + (mass - left) * (load - begun)
        return mass * (cost.alpha * length + cost.gamma) + cost.beta * (ended + left * length)

    return _programme(merged, reserve)


def _merged(values: Sequence[float], weights: Sequence[float]) -> list[tuple[float, float]]:
    """Merge equal values and drop values without weight; keep the longest, because it must cover all runs."""
    together: dict[float, float] = {}
    for value, weight in zip(values, weights, strict=True):
        together[value] = together.get(value, 0.0) + weight
    longest = max(together)
    return sorted((value, weight) for value, weight in together.items() if weight > 0 or value == longest)


def _programme(
    points: list[tuple[float, float]], reserve: Callable[[int, int, float, float, float], float]
) -> list[float]:
    """Return the cheapest of all ways to cut ``points`` (run time, probability) into reservations.

    ``reserve(i, j, mass, left, moment)`` returns the cost of a reservation up to point j, which all runs from point i
    on use: ``mass`` is the probability of these runs, ``left`` is the probability of runs beyond j, and ``moment`` is
    the sum of run time times probability of the runs that end in the reservation.
    """
    n = len(points)
    beyond, moments = [0.0] * (n + 1), [0.0] * (n + 1)
    for i in range(n - 1, -1, -1):
        beyond[i] = beyond[i + 1] + points[i][1]
        moments[i] = moments[i + 1] + points[i][0] * points[i][1]
    best, choice = [0.0] * (n + 1), [0] * n
    for i in range(n - 1, -1, -1):
        mass, moment = beyond[i], moments[i]
        prices = [reserve(i, j, mass, beyond[j + 1], moment - moments[j + 1]) + best[j + 1] for j in range(i, n)]
        best[i] = min(prices)
        choice[i] = i + prices.index(best[i])
    sequence, i = [], 0
    while i < n:
        sequence.append(points[choice[i]][0])
        i = choice[i] + 1
    return sequence


def covering(sequence: Iterable[float], distribution: Distribution, tail: float = 1e-6) -> list[float]:
    """Return the first reservations of ``sequence`` that cover all but a fraction ``tail`` of the runs."""
    shown: list[float] = []
    for reserved in islice(sequence, 100_000):
        shown.append(reserved)
        if distribution.sf(reserved) <= tail:
            break
    return shown
