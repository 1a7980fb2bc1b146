"""How long to reserve for a job that asks for ``--time auto``: from its submitter's own earlier runs of that script."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ebbtide_core.reserving.cost import CostModel
from ebbtide_core.reserving.distribution import Empirical
from ebbtide_core.reserving.sequences import best_for

MIN_RUNS: Final = 5
"""Earlier runs below which a history says too little."""
FIRST_S: Final = 3600.0
"""What is reserved first for a script that was never run."""
COST: Final = CostModel(1.0, 0.0, 0.0)
"""What is to be kept small: the time reserved."""


def next_reservation(runs: Sequence[float], used_s: float) -> tuple[float, str]:
    """Until which running time, in seconds, a job that ran for ``used_s`` reserves, and how that is known.

    ``runs`` are the running times of earlier runs. With `MIN_RUNS` or more it is the sequence that would have cost
    least for them; beyond the longest of them it doubles. With fewer, it is twice the longest, or `FIRST_S`, and then
    doubles too: a rule that costs at most four times what one pays who knows.
    """
    if len(runs) < MIN_RUNS:
        first = 2 * max(runs) if runs else FIRST_S
        return _doubled(first, used_s), f"too little history, {len(runs)} of {MIN_RUNS} runs"
    known = tuple(run for run in runs if run > 0)
    sequence = _best_sequence(known)
    for reserved in sequence:
        if reserved > used_s * (1 + 1e-9):
            return reserved, f"from {len(known)} earlier runs"
    return _doubled(sequence[-1], used_s), f"longer than all {len(known)} earlier runs"


@lru_cache(maxsize=256)
def _best_sequence(runs: tuple[float, ...]) -> tuple[float, ...]:
    """The sequence that would have cost least; kept, because a pass asks for it again for every job that waits."""
    history = Empirical(runs)
    values = sorted(set(history.runs))
    weights = [history.runs.count(value) / len(history.runs) for value in values]
    return tuple(best_for(values, weights, COST))


def _doubled(seconds: float, used_s: float) -> float:
    while seconds <= used_s * (1 + 1e-9):
        seconds *= 2
    return seconds
