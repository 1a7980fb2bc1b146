"""Draws the results of simulations as PNG files. It is imported late, because matplotlib takes a second to load."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ebbtide_core.model.types import JobClass

from ebbtide_sim.metrics import Report, Tally

COLORS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#000000")
"""Colours that colour-blind people can tell apart (Okabe and Ito)."""


@contextmanager
def drawn(path: Path, width: float, height: float, dpi: int = 120) -> Iterator[Any]:
    """Yield an empty figure that needs no display, and write it to ``path`` at the end of the block.

    It is a PNG unless the path ends with another kind that can be drawn.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    yield figure
    kind = path.suffix[1:].lower()
    figure.savefig(path, dpi=dpi, format=kind if kind in figure.canvas.get_supported_filetypes() else "png")


def draw_run(tallies: Sequence[Tally], title: str, path: Path) -> None:
    """Draw the distributions of slowdown and flow time by class."""
    with drawn(path, 9, 4) as figure:
        figure.suptitle(title)
        done = [tally for tally in tallies if tally.ended is not None]
        measures: tuple[tuple[str, Callable[[Tally], float]], ...] = (
            ("slowdown", lambda tally: tally.slowdown),
            ("flow time in s", lambda tally: tally.flow_s),
        )
        for axes, (label, measure) in zip(figure.subplots(1, 2), measures, strict=True):
            for kind, color in zip(JobClass, COLORS, strict=False):
                values = sorted(measure(tally) for tally in done if tally.job.job_class is kind)
                if values:
                    shares = [(index + 1) / len(values) for index in range(len(values))]
                    axes.step(values, shares, where="post", color=color, label=f"{kind.value} ({len(values)} jobs)")
            axes.set_xscale("log")
            axes.set_xlabel(label)
            axes.set_ylabel("share of jobs")
            axes.grid(alpha=0.3)
            axes.legend(fontsize=8)


def draw_sweep(results: Sequence[tuple[Mapping[str, str], Report]], metric: str, path: Path) -> None:
    """Draw one bar of ``metric``, a path into the report such as ``slowdown.te.p95``, for each combination."""
    with drawn(path, 9, 0.35 * len(results) + 1.5) as figure:
        axes = figure.subplots()
        labels = [", ".join(f"{name}={value}" for name, value in parameters.items()) for parameters, _ in results]
        heights = [value_of(report, metric) or 0.0 for _, report in results]
        bars = axes.barh(range(len(results)), heights, color=COLORS[0])
        axes.bar_label(bars, fmt="%.4g", fontsize=8, padding=2)
        axes.set_yticks(range(len(results)), labels, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel(metric)


def draw_borrowing(results: Sequence[tuple[Mapping[str, str], Report]], metric: str, path: Path) -> None:
    """Draw a point for each combination: ``metric`` by the cost of the borrowed nodes, or their GPU hours if free."""
    cost = "supply.cost" if any(value_of(report, "supply.cost") for _, report in results) else "supply.gpu_hours"
    with drawn(path, 10, 5) as figure:
        axes = figure.subplots()
        for number, (parameters, report) in enumerate(results):
            point = value_of(report, cost) or 0.0, value_of(report, metric) or 0.0
            label = ", ".join(f"{name}={value}" for name, value in parameters.items())
            axes.plot(*point, "o", color=COLORS[number % len(COLORS)], label=f"{number + 1}: {label}")
            axes.annotate(str(number + 1), point, xytext=(4, 4), textcoords="offset points", fontsize=8)
        axes.margins(0.08)
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside right upper", fontsize=8)
        axes.set_xlabel("cost" if cost == "supply.cost" else "borrowed GPU hours")
        axes.set_ylabel(metric)
        axes.grid(alpha=0.3)


def value_of(report: Report, metric: str) -> float | None:
    """Return the number at ``metric`` in the report; raise ``KeyError`` if there is none."""
    value: Any = report.to_json()
    for name in metric.split("."):
        value = value[name]
    if isinstance(value, dict | str):
        raise KeyError(metric)
    return None if value is None else float(value)
