"""Compares moldable and malleable scheduling with rigid scheduling (seed 001, §V and §VI)."""

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
    """Run the experiment on synthetic workloads that take a minute; if ``full``, with the traces in folder EBB_TRACES.

    In full these are 202,871 tasks of HPC2N, the largest virtual cluster of Philly, and 77,677 tasks in bags. Raise
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
    """Return the cluster sizes of each workload, in GPUs."""
    return {
        part: HPC2N_SIZES if part.of_processors else gpu_sizes(tasks(part, Arrival.SUBMIT, within))
        for part in within.parts
    }


def simulate_all(
    todo: list[EquipartitionCase], within: Extent, jobs: int, progress: Progress
) -> dict[EquipartitionCase, Report]:
    """Simulate all cases in ``jobs`` processes; return their reports."""
    runs = [Run(str(case), partial(run_case, case, within)) for case in todo]
    return dict(zip(todo, run_all(runs, jobs, progress), strict=True))
