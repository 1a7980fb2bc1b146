"""Decides how long to reserve for a job with ``--time auto``, from its submitter's earlier runs of the same script."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ebbtide_core.reserving.cost import CostModel
from ebbtide_core.reserving.distribution import Empirical
from ebbtide_core.reserving.sequences import best_for

MIN_RUNS: Final = 5
"""The least number of earlier runs from which a sequence is computed."""
FIRST_S: Final = 3600.0
"""Seconds that are reserved first for a script without earlier runs."""
COST: Final = CostModel(1.0, 0.0, 0.0)
"""The cost to minimise: the reserved time alone."""


def next_reservation(runs: Sequence[float], used_s: float) -> tuple[float, str]:
    """Return until which running time, in seconds, a job that ran for ``used_s`` reserves, and how that is known.

    ``runs`` are the running times of earlier runs, in seconds. With `MIN_RUNS` or more, the reservations are the
    sequence that would have cost least for them, and double beyond the longest of them. With fewer, they start at twice
    the longest run, or at `FIRST_S`, and double too; that costs at most four times as much as knowing the run time.
    Runs of no time, of which the start and the end came in one report, do not count.
    """
    known = tuple(run for run in runs if run > 0)
    if len(known) < MIN_RUNS:
        first = 2 * max(known) if known else FIRST_S
        return _doubled(first, used_s), f"too little history, {len(known)} of {MIN_RUNS} runs"
    sequence = _best_sequence(known)
    for reserved in sequence:
        if reserved > used_s * (1 + 1e-9):
            return reserved, f"from {len(known)} earlier runs"
    return _doubled(sequence[-1], used_s), f"longer than all {len(known)} earlier runs"


@lru_cache(maxsize=256)
def _best_sequence(runs: tuple[float, ...]) -> tuple[float, ...]:
    """Return the sequence that would have cost least; it is cached, because passes need it for every waiting job."""
    history = Empirical(runs)
    values = sorted(set(history.runs))
    weights = [history.runs.count(value) / len(history.runs) for value in values]
    return tuple(best_for(values, weights, COST))


def _doubled(seconds: float, used_s: float) -> float:
    while seconds <= used_s * (1 + 1e-9):
        seconds *= 2
    return seconds
