"""Moldable and malleable scheduling against rigid (seed 001, §V and §VI)."""

from functools import partial
from typing import Final

from ebbtide_sim.experiments import ExperimentReport, Progress
from ebbtide_sim.experiments.equipartition.cases import (
    HPC2N_SIZES,
    Arrival,
    EquipartitionCase,
    Extent,
    WorkloadPart,
    all_cases,
    extent,
    gpu_sizes,
    run_case,
    tasks,
)
from ebbtide_sim.experiments.equipartition.checks import checks
from ebbtide_sim.experiments.equipartition.figure import draw
from ebbtide_sim.experiments.equipartition.report import Results, assumptions, details, rows
from ebbtide_sim.experiments.running import Run, run_all
from ebbtide_sim.metrics import Report

DESCRIPTION: Final = "Moldable and malleable policies against rigid ones, on HPC2N, Philly and bags of tasks (seed 001)"


def run(full: bool, seed: int, jobs: int, progress: Progress) -> ExperimentReport:
    """Run it on made-up workloads, small enough for a minute; in ``full`` with the traces in the folder of EBB_TRACES.

    In full that is 202,871 tasks of HPC2N, the largest virtual cluster of Philly and 77,677 tasks in bags.
    `WorkloadError` if a trace is missing.
    """
    within = extent(full, seed)
    sizes = sizes_of(within)
    results = Results(sizes, simulate_all(all_cases(sizes), within, jobs, progress))
    return ExperimentReport(
        name="equipartition",
        rows=rows(results),
        checks=checks(results),
        assumptions=assumptions(results, within),
        draw=partial(draw, results),
        details=details(results),
    )


def sizes_of(within: Extent) -> dict[WorkloadPart, tuple[int, ...]]:
    """The cluster sizes of each workload."""
    return {
        part: HPC2N_SIZES if part.of_processors else gpu_sizes(tasks(part, Arrival.SUBMIT, within))
        for part in within.parts
    }


def simulate_all(
    todo: list[EquipartitionCase], within: Extent, jobs: int, progress: Progress
) -> dict[EquipartitionCase, Report]:
    """The reports of all cases, simulated in ``jobs`` processes."""
    runs = [Run(str(case), partial(run_case, case, within)) for case in todo]
    return dict(zip(todo, run_all(runs, jobs, progress), strict=True))
