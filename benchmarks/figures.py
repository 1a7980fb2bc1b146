"""Draws what `bench.py` found: values beside those of others, and how much of each mark is used."""

from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from marks import OURS, Measured

COLOURS: Final = {OURS: "#1f6f8b", "Slurm": "#d08c3c", "HyperQueue": "#7a9e5a"}
OTHER: Final = "#999999"
MISSED: Final = "#b5413b"
WIDTH: Final = 9.0
DPI: Final = 110


def draw(values: list[Measured], into: Path) -> list[str]:
    """Draw each figure of which there is something; return the names of the files."""
    drawn = []
    titles = {
        "launches": "Milliseconds (less is better, logarithmic)",
        "array": "Array: jobs a second (more is better), and CPU milliseconds of a job (less is better)",
        "command": "CPU milliseconds of a call",
        "passes": "CPU milliseconds of a pass: 1,000 nodes of 8 GPUs, 10,000 waiting jobs",
    }
    for shown, title in titles.items():
        if chosen := [value for value in values if value.shown == shown]:
            _bars(chosen, title, shown == "launches", into / f"{shown}.png")
            drawn.append(f"{shown}.png")
    if marked := [value for value in values if value.used is not None]:
        _marks(marked, into / "marks.png")
        drawn.append("marks.png")
    return drawn


def _bars(values: list[Measured], title: str, logarithmic: bool, file: Path) -> None:
    """A group of bars for each value, one for each who was measured; marks are black lines."""
    who = list(dict.fromkeys([OURS, *(name for value in values for name in value.beside)]))
    figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.28 * len(values) * max(1, len(who))), layout="constrained")
    thick = 0.8 / len(who)
    for number, name in enumerate(who):
        at, lengths = [], []
        for row, value in enumerate(values):
            length = value.value if name == OURS else value.beside.get(name)
            if length is not None:
                at.append(row + thick * (number - (len(who) - 1) / 2))
                lengths.append(length)
        bars = axes.barh(at, lengths, thick, label=name, color=COLOURS.get(name, OTHER))
        axes.bar_label(bars, [f"{length:,.3g}" if length < 100 else f"{length:,.0f}" for length in lengths], padding=3)
    for row, value in enumerate(values):
        if value.most is not None:
            axes.plot([value.most] * 2, [row - 0.45, row + 0.45], color="black", linewidth=1.5)
    _finish(axes, [value.name for value in values], title, logarithmic)
    if len(who) > 1:
        axes.legend(loc="lower right", frameon=False)
    figure.savefig(file, dpi=DPI)
    plt.close(figure)


def _marks(values: list[Measured], file: Path) -> None:
    """How much of each mark is used; what is missed is red."""
    figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.3 * len(values)), layout="constrained")
    used = [max(value.used or 0.0, 0.01) for value in values]
    colours = [COLOURS[OURS] if value.kept else MISSED for value in values]
    bars = axes.barh(range(len(values)), used, 0.7, color=colours)
    axes.bar_label(bars, [f"{share:.0%}" for share in used], padding=3)
    axes.axvline(1.0, color="black", linewidth=1.5)
    _finish(
        axes, [value.name for value in values], "How much of each mark is used: met up to 100 % (logarithmic)", True
    )
    figure.savefig(file, dpi=DPI)
    plt.close(figure)


def _finish(axes: Any, names: list[str], title: str, logarithmic: bool) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.15)
    if logarithmic:
        axes.set_xscale("log")
