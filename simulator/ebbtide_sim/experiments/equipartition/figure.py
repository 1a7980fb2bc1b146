"""Draws the paper's Figs. 3, 4, 5, 7, 8 and 9 in one figure."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from ebbtide_sim.draw import COLORS, drawn
from ebbtide_sim.experiments.equipartition.cases import (
    COSTLY,
    FCFS,
    LIVE,
    MALLEABLE,
    MALLEABLE_PRO,
    MOLDABLE,
    MOLDABLE_PRO,
    NON_CLAIRVOYANT,
    POLICIES,
    RESTARTS_S,
    SHORTEST,
    Arrival,
    EquipartitionCase,
    PolicyVariant,
    WorkloadPart,
)
from ebbtide_sim.experiments.equipartition.report import (
    Measure,
    Results,
    flow_max,
    flow_mean,
    job_flow_max,
    job_flow_mean,
    job_stretch_max,
    job_stretch_mean,
    makespan,
    stretch_max,
    stretch_mean,
    utilisation,
)

STYLES: Final = {
    FCFS: (COLORS[6], "-"), SHORTEST: (COLORS[6], "--"), MOLDABLE: (COLORS[1], "-"), MOLDABLE_PRO: (COLORS[1], "--"),
    MALLEABLE: (COLORS[0], "-"), MALLEABLE_PRO: (COLORS[0], "--"), LIVE: (COLORS[2], "-"),
}  # fmt: skip
"""Colour and line style by policy; policies that know run times are dashed."""


def draw(results: Results, path: Path) -> None:
    """Draw one row of panels per workload; averages are filled dots, maxima open ones."""
    parts = list(results.sizes)
    columns = 6 if WorkloadPart.FEW_BAGS in parts else 5
    with drawn(path, 4.2 * columns, 4.3 * len(parts), 80) as figure:
        for part, panels in zip(parts, figure.subplots(len(parts), columns, squeeze=False), strict=True):
            _row(results, part, panels)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)


def _row(results: Results, part: WorkloadPart, panels: Any) -> None:
    used, flow, stretch, *last = panels
    half = () if part.of_processors else (max(1, results.sizes[part][0] // 2),)
    _lines(
        results, used, part, (utilisation,), NON_CLAIRVOYANT if half else POLICIES, sizes=(*half, *results.sizes[part])
    )
    _finish(used, f"{part}: utilisation", log=False)
    _lines(results, flow, part, (flow_mean, flow_max), POLICIES)
    _finish(flow, f"{part}: flow time per task in s")
    _lines(results, stretch, part, (stretch_mean, stretch_max), POLICIES)
    _finish(stretch, f"{part}: stretch per task")
    match part:
        case WorkloadPart.HPC2N | WorkloadPart.LIKE_HPC2N:
            _lines(results, last[0], part, (makespan,), POLICIES, arrival=Arrival.OFFLINE)
            _finish(last[0], f"{part}, all at once: makespan in s")
            _lines(results, last[1], part, (flow_mean, flow_max), POLICIES, arrival=Arrival.OFFLINE)
            _finish(last[1], f"{part}, all at once: flow time per task in s")
        case WorkloadPart.PHILLY:
            _overhead(results, last[0], part, flow_mean)
            _finish(last[0], f"{part}: average flow time in s, by restart cost")
            _overhead(results, last[1], part, flow_max)
            _finish(last[1], f"{part}: greatest flow time in s, by restart cost")
        case WorkloadPart.BAGS | WorkloadPart.FEW_BAGS:
            _lines(results, last[0], part, (job_flow_mean, job_flow_max), POLICIES)
            _finish(last[0], f"{part}: flow time per job in s")
            _lines(results, last[1], part, (job_stretch_mean, job_stretch_max), POLICIES)
            _finish(last[1], f"{part}: stretch per job")
            if part in COSTLY:
                _overhead(results, last[2], part, flow_mean)
                _finish(last[2], f"{part}: average flow time in s, by restart cost")
    for axes in last:
        if not axes.lines:
            axes.set_axis_off()


def _overhead(results: Results, axes: Any, part: WorkloadPart, measure: Measure) -> None:
    """Draw Fig. 5, and the live defaults beside it."""
    _lines(results, axes, part, (measure,), (MOLDABLE, MALLEABLE))
    for cost, marker in zip(RESTARTS_S, ("s", "^"), strict=True):
        for policy in COSTLY[part]:
            name = "live defaults" if policy is LIVE else "malleable"
            values = [results.value(measure, case) for case in results.over_sizes(part, policy, restart_s=cost)]
            color, _ = STYLES[policy]
            label = f"{name}, {cost:g} s"
            axes.plot(results.sizes[part], values, color=color, linestyle=":", marker=marker, markersize=5, label=label)
    axes.legend(fontsize=7)


def _lines(
    results: Results,
    axes: Any,
    part: WorkloadPart,
    measures: Iterable[Measure],
    policies: Iterable[PolicyVariant],
    sizes: tuple[int, ...] = (),
    arrival: Arrival = Arrival.SUBMIT,
) -> None:
    sizes = sizes or results.sizes[part]
    sizes = tuple(gpus for gpus in sizes if EquipartitionCase(part, gpus, FCFS, arrival) in results.reports)
    for policy in policies:
        color, style = STYLES[policy]
        for index, measure in enumerate(measures):
            values = [results.value(measure, EquipartitionCase(part, gpus, policy, arrival)) for gpus in sizes]
            fill = "white" if index else color
            label = policy.label if not index else None
            axes.plot(sizes, values, style, color=color, marker="o", markersize=4, markerfacecolor=fill, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])


def _finish(axes: Any, title: str, log: bool = True) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("GPUs", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    if log:
        axes.set_yscale("log")
