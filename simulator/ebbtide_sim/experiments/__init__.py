"""The papers' experiments; ``ebb simulate NAME`` runs one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

Progress = Callable[[str, float], None]
"""A callback that is called with what was done, in words, and the fraction of the whole that is done (0 to 1)."""


@dataclass(frozen=True, slots=True)
class Check:
    """A statement of the paper, whether it holds here, and the figures in words."""

    name: str
    held: bool
    detail: str


def percent_above(ours: float | None, base: float | None) -> float:
    """Return by how many percent ``ours`` is above ``base``; 0 if either is unknown, or ``base`` is 0."""
    return (ours / base - 1) * 100 if ours is not None and base else 0.0


@dataclass(frozen=True, slots=True)
class ExperimentReport:
    """The results of an experiment: ``rows`` are flat and have the paper's figures beside ours."""

    name: str
    rows: tuple[dict[str, Any], ...]
    checks: tuple[Check, ...]
    assumptions: tuple[str, ...]
    draw: Callable[[Path], None]
    """Draws the paper's figure as PNG."""
    details: dict[str, Any] = field(default_factory=dict)
    """Further facts that only ``--json`` shows."""
    tables: dict[str, tuple[dict[str, Any], ...]] = field(default_factory=dict)
    """Further tables by title, which are printed below the rows."""

    def to_json(self) -> dict[str, Any]:
        """Return the report without its figure and tables."""
        return {
            "experiment": self.name,
            "rows": list(self.rows),
            "checks": [{"name": check.name, "held": check.held, "detail": check.detail} for check in self.checks],
            "assumptions": list(self.assumptions),
            **self.details,
        }


class Experiment(Protocol):
    """The interface of an experiment's module: one line that describes it, and its run."""

    DESCRIPTION: str

    def run(self, full: bool, seed: int, jobs: int, progress: Progress) -> ExperimentReport:
        """Run the experiment, at the paper's size if ``full``, in ``jobs`` processes."""
        ...


EXPERIMENTS: Final = ("fitgpp", "equipartition", "hybrid", "determined", "reservations", "tide")


def load_experiment(name: str) -> Experiment:
    """Import the experiment ``name``, one of `EXPERIMENTS`; only when asked, because each needs its own libraries."""
    module: Any = import_module(f"{__name__}.{name}")
    experiment: Experiment = module
    return experiment
