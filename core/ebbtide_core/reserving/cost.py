"""Computes what reservations cost: alpha per second reserved, beta per second used, gamma for each (seed 002)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from ebbtide_core.reserving.distribution import Distribution, ReservationError

MAX_RESERVATIONS: Final = 200_000
"""Reservations of a sequence that are counted; the rest is less than one part in 100,000 of any cost."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """The cost of a reservation of t1 for a run of t: alpha·t1 + beta·min(t1, t) + gamma (seed 002, cost model)."""

    alpha: float = 1.0
    beta: float = 0.0
    gamma: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise ReservationError(f"--{name}: {value} is not a number of at least 0")
        if not (self.alpha or self.beta or self.gamma):
            raise ReservationError("--alpha, --beta, --gamma: are all 0, so every sequence costs 0")

    def omniscient(self, distribution: Distribution) -> float:
        """Return the expected cost if the run time is known beforehand: (alpha + beta)·E[X] + gamma."""
        return (self.alpha + self.beta) * distribution.mean + self.gamma


def expected_cost(sequence: Iterable[float], distribution: Distribution, cost: CostModel) -> float:
    """Return E(S) = beta·E[X] + sum over i of (alpha·t_{i+1} + beta·t_i + gamma)·P(X > t_i), t_0 = 0 (seed 002).

    The result is exact except for rounding: terms are added until they no longer count. (The document has P(X >= t_i);
    a run that ends with its reservation would then pay for another one. For continuous run times both are the same.)
    Raises `ReservationError` if the sequence ends before the longest run.
    """
    total, before, beyond = cost.beta * distribution.mean, 0.0, 1.0
    for number, reserved in enumerate(sequence):
        term = (cost.alpha * reserved + cost.beta * before + cost.gamma) * beyond
        total += term
        beyond = distribution.sf(reserved)
        before = reserved
        if beyond <= 0 or (term * (number + 1) < 1e-9 * total and beyond < 1e-9) or number >= MAX_RESERVATIONS:
            return total
    if beyond > 1e-9:
        raise ReservationError(f"the sequence ends at {before:g}, and some runs are longer")
    return total


# --- with a checkpoint at the end of each reservation, which keeps the work (an open question of the document) ---


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """The cost of checkpoints: a reservation ends with ``save`` seconds, and the next one begins with ``load``."""

    save: float
    load: float


def checkpointed_cost(
    targets: Sequence[float], distribution: Distribution, cost: CostModel, checkpoint: Checkpointing
) -> float:
    """Return the expected cost if reservation i is just long enough to get from work t_{i-1} to t_i, and to save it.

    A run that ends in a reservation pays beta for the seconds that it used, other runs pay beta for all of them.
    ``targets`` must reach the longest run, or `ReservationError` is raised.
    """
    total, before = 0.0, 0.0
    for number, target in enumerate(targets):
        load = checkpoint.load if number else 0.0
        beyond, still = distribution.sf(before) if number else 1.0, distribution.sf(target)
        length = load + target - before + (checkpoint.save if still > 0 else 0.0)
        total += beyond * (cost.alpha * length + cost.gamma)
        ended = beyond * distribution.mean_beyond(before) if number else distribution.mean
        ended -= still * distribution.mean_beyond(target) if still > 0 else 0.0
        total += cost.beta * (ended + (beyond - still) * (load - before) + still * length)
        before = target
    if distribution.sf(before) > 1e-6:
        raise ReservationError(f"the sequence ends at {before:g}, and some runs are longer")
    return total
