"""What `make chaos` measured, beside what was promised: lines of JSON while it runs, a table in the end."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "EBB_FIGURES"
"""Environment variable that names the file; without it figures are printed only."""


@dataclass(frozen=True, slots=True)
class Figure:
    """``limit`` in words; ``held`` is whether ``value`` is within it."""

    name: str
    value: float | str
    limit: str
    held: bool


def record(name: str, value: float | str, limit: str, held: bool) -> None:
    """Note a figure."""
    figure = Figure(name, value, limit, held)
    line = json.dumps(asdict(figure))
    if path := os.environ.get(FILE):
        with Path(path).open("a") as file:
            file.write(line + "\n")
    else:
        print(line, flush=True)


def at_least(name: str, value: float, limit: float) -> None:
    """Note a figure that is to be ``limit`` or more."""
    record(name, value, f"≥ {limit:,}", value >= limit)


def none(name: str, value: int) -> None:
    """Note how often something happened that never may."""
    record(name, value, "0", value == 0)


def read(path: Path) -> list[Figure]:
    """All that were noted in the file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Figure(**json.loads(line)) for line in lines]


def table(figures: list[Figure]) -> str:
    """For people."""
    rows = [(figure.name, _words(figure.value), figure.limit, "" if figure.held else "NOT HELD") for figure in figures]
    heads = ("figure", "now", "limit", "")
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(4)]
    lines = [
        f"{name:<{widths[0]}}  {now:>{widths[1]}}  {limit:>{widths[2]}}  {word}".rstrip()
        for name, now, limit, word in (heads, *rows)
    ]
    return "\n".join(lines)


def _words(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
