"""The papers' experiments, each one command away: ``ebb simulate NAME``."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

Progress = Callable[[str, float], None]
"""Is told what goes on, in words, and which part of the whole is done (0 to 1)."""


@dataclass(frozen=True, slots=True)
class Check:
    """A statement of the paper, whether it holds here, and the figures."""

    name: str
    held: bool
    detail: str


def percent_above(ours: float | None, base: float | None) -> float:
    """By how many percent ``ours`` is above ``base``; 0 if there is no base."""
    return (ours / base - 1) * 100 if ours is not None and base else 0.0


@dataclass(frozen=True, slots=True)
class ExperimentReport:
    """What came of an experiment: ``rows`` are flat and have the paper's figures beside ours."""

    name: str
    rows: tuple[dict[str, Any], ...]
    checks: tuple[Check, ...]
    assumptions: tuple[str, ...]
    draw: Callable[[Path], None]
    """Draws the paper's figure as PNG."""
    details: dict[str, Any] = field(default_factory=dict)
    """What else ``--json`` shows."""
    tables: dict[str, tuple[dict[str, Any], ...]] = field(default_factory=dict)
    """What else is printed below the rows: more rows, by title."""

    def to_json(self) -> dict[str, Any]:
        """The report without its figure."""
        return {
            "experiment": self.name,
            "rows": list(self.rows),
            "checks": [{"name": check.name, "held": check.held, "detail": check.detail} for check in self.checks],
            "assumptions": list(self.assumptions),
            **self.details,
        }


class Experiment(Protocol):
    """A module of this package: what it is called with, and one line that says what it shows."""

    DESCRIPTION: str

    def run(self, full: bool, seed: int, jobs: int, progress: Progress) -> ExperimentReport:
        """Run it, at the paper's size if ``full``, in ``jobs`` processes."""
        ...


EXPERIMENTS: Final = ("fitgpp", "equipartition", "hybrid", "determined", "reservations")


def load_experiment(name: str) -> Experiment:
    """The experiment ``name``, one of `EXPERIMENTS`; imported only now, because each needs its own libraries."""
    module: Any = import_module(f"{__name__}.{name}")
    experiment: Experiment = module
    return experiment
