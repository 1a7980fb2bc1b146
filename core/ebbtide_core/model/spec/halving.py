"""Defines how the tasks of an array are compared under successive halving (`ebbtide_core.model.asha`)."""

from enum import Enum
from typing import Final

from ebbtide_core.model.frozen import frozen

MAX_ETA: Final = 100
MAX_STEPS: Final = 10**15


class Mode(Enum):
    """Whether smaller or larger results are better."""

    MIN = "min"
    MAX = "max"


@frozen(kw_only=True)
class Asha:
    """How tasks are compared: by ``metric`` at rungs from ``min_steps`` on, each at ``eta`` times the steps before.

    There is no rung at or beyond ``max_steps``: a task that gets so far runs to its own end.
    """

    min_steps: int
    max_steps: int
    metric: str = "loss"
    mode: Mode = Mode.MIN
    eta: int = 4

    def rungs(self) -> tuple[int, ...]:
        """Return the steps of all rungs, ascending."""
        steps, rungs = self.min_steps, []
        while steps < self.max_steps:
            rungs.append(steps)
            steps *= self.eta
        return tuple(rungs)

    def fault(self) -> str:
        """Return what is wrong, in words that name the setting and the limit; empty if nothing is."""
        if not 2 <= self.eta <= MAX_ETA:
            return f"eta: {self.eta} is not between 2 and {MAX_ETA}"
        if not 1 <= self.min_steps <= MAX_STEPS:
            return f"min-steps: {self.min_steps} is not between 1 and {MAX_STEPS}"
        if not self.min_steps < self.max_steps <= MAX_STEPS:
            return f"max-steps: {self.max_steps} is not more than min-steps, {self.min_steps}, and at most {MAX_STEPS}"
        return "" if self.metric else "metric: has no name"
