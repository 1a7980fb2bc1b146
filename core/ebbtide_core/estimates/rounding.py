"""Rounds times that jobs ask for, so that many waiting jobs ask for the same and are tried once in a pass."""

import math
from typing import Final

STEPS: Final = ((600.0, 10.0), (3600.0, 60.0), (86_400.0, 600.0), (math.inf, 3600.0))
"""Pairs (bound, step) in seconds: times below the bound are rounded up to multiples of the step."""


def rounded_up_s(seconds: float) -> float:
    """Return ``seconds`` rounded up to a multiple of a step that suits them."""
    if seconds == math.inf:
        return seconds
    step = next(step for below, step in STEPS if seconds < below)
    return -(-seconds // step) * step
