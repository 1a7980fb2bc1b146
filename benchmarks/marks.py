"""Measured values beside their marks and beside what others reach: how the benchmarks hand them on and print them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

OURS: Final = "Ebbtide"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One value of Ebbtide, and those of others in ``beside``, in the same unit.

    It keeps its mark if it is at most ``most``, or at least ``least``; without either, it has no mark. ``shown`` says
    in which figure of `figures` it stands.
    """

    name: str
    value: float
    unit: str
    most: float | None = None
    least: float | None = None
    beside: Mapping[str, float] = field(default_factory=dict)
    shown: str = ""

    @property
    def kept(self) -> bool | None:
        """Whether the mark is kept; None without one."""
        if self.least is not None:
            return self.value >= self.least
        return None if self.most is None else self.value <= self.most

    @property
    def used(self) -> float | None:
        """How much of what the mark allows was used: 1 or less if it is kept; None without one."""
        if self.least is not None:
            return _part(self.least, self.value)
        return None if self.most is None else _part(self.value, self.most)

    @property
    def mark(self) -> str:
        """The mark in words, and whether it is kept."""
        if self.kept is None:
            return ""
        bound = f"at most {_short(self.most)}" if self.least is None else f"at least {_short(self.least)}"
        return f"{bound} {self.unit}: {'met' if self.kept else 'MISSED'}"

    @property
    def ratios(self) -> Iterator[str]:
        """How many times as much as each of the others it is, in words."""
        for name, value in self.beside.items():
            yield f"{_short(self.value / value)} × {name}" if value else f"{name}: 0"

    def as_json(self) -> str:
        """The same in one line."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        beside = "".join(f"; {name} {_short(value)} {self.unit}" for name, value in self.beside.items())
        return f"{self.name}: {_short(self.value)} {self.unit}{beside}{self.mark and f' ({self.mark})'}"


def from_json(line: str) -> Measured:
    """What `Measured.as_json` wrote."""
    fields: dict[str, Any] = json.loads(line)
    return Measured(**fields)


def table(values: list[Measured]) -> str:
    """All values, as a table of Markdown."""
    others = list(dict.fromkeys(name for value in values for name in value.beside))
    lines = [f"| | {' | '.join([OURS, *others])} | ratio | mark |", "|---" * (4 + len(others)) + "|"]
    for each in values:
        cells = [each.value, *(each.beside.get(name) for name in others)]
        shown = [f"{_short(cell)} {each.unit}" if cell is not None else "" for cell in cells]
        lines.append(f"| {each.name} | {' | '.join([*shown, ', '.join(each.ratios), each.mark])} |")
    return "\n".join(lines) + "\n"


def quantile(values: list[float], share: float) -> float:
    """The value below which that share of ``values`` lies, by rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


def _part(value: float, whole: float) -> float:
    """Return how much of ``whole`` is ``value``; a whole of 0 has room for 0 only."""
    return value / whole if whole else (float("inf") if value else 0.0)


def _short(value: float | None) -> str:
    """A number with three digits that mean something."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
