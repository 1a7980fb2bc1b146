"""Turns the results into rows, with the paper's figures beside ours."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ebbtide_sim.experiments import percent_above
from ebbtide_sim.experiments.equipartition.cases import (
    CPUS,
    FCFS,
    MALLEABLE,
    MOLDABLE,
    MOLDABLE_PRO,
    PAPER_GPUS,
    TRACES,
    Arrival,
    EquipartitionCase,
    Extent,
    PolicyVariant,
    WorkloadPart,
)
from ebbtide_sim.metrics import Report

Measure = Callable[[Report], float]


def _per_task(measure: str, statistic: str) -> Measure:
    """Make a measure of the tasks' flow times, in seconds, or of their stretches."""
    return lambda report: getattr(report, measure)[statistic] or 0.0


def _per_job(measure: str, statistic: str) -> Measure:
    """Make a measure of jobs, which are bags of tasks."""
    return lambda report: ((report.per_job or {}).get(measure) or {}).get(statistic) or 0.0


flow_mean, flow_max = (_per_task("flow_time_s", statistic) for statistic in ("mean", "max"))
stretch_mean, stretch_max = (_per_task("stretch", statistic) for statistic in ("mean", "max"))
job_flow_mean, job_flow_max = (_per_job("flow_time_s", statistic) for statistic in ("mean", "max"))
job_stretch_mean, job_stretch_max = (_per_job("stretch", statistic) for statistic in ("mean", "max"))


def makespan(report: Report) -> float:
    """Return the seconds from the first arrival to the last completion."""
    return report.makespan_s


def utilisation(report: Report) -> float:
    """Return the volume over GPUs x makespan."""
    return report.utilisation


@dataclass(frozen=True, slots=True)
class Results:
    """The reports of all cases. ``sizes`` are the cluster sizes of each workload."""

    sizes: dict[WorkloadPart, tuple[int, ...]]
    reports: dict[EquipartitionCase, Report]

    def value(self, measure: Measure, case: EquipartitionCase) -> float:
        """Return ``measure`` in ``case``."""
        return measure(self.reports[case])

    def change(self, measure: Measure, case: EquipartitionCase, base: PolicyVariant = FCFS) -> float:
        """Return by how many percent ``case`` is above policy ``base`` with free restarts; 0 if that is 0."""
        below = self.value(measure, replace(case, policy=base, restart_s=0.0))
        return percent_above(self.value(measure, case), below)

    def changes(self, measure: Measure, cases: Iterator[EquipartitionCase], base: PolicyVariant = FCFS) -> list[float]:
        """Return the changes of several cases."""
        return [self.change(measure, case, base) for case in cases]

    def over_sizes(self, part: WorkloadPart, policy: PolicyVariant, **more: Any) -> Iterator[EquipartitionCase]:
        """Yield the simulated cases of ``part`` and ``policy``, one for each cluster size."""
        cases = (EquipartitionCase(part, gpus, policy, **more) for gpus in self.sizes[part])
        return (case for case in cases if case in self.reports)

    def like_the_papers(self, case: EquipartitionCase) -> int | None:
        """Return the size of the paper's cluster that is as crowded as that of ``case``; None if there is none."""
        if case.part.of_processors:
            return case.gpus
        sizes = self.sizes[case.part]
        return PAPER_GPUS[sizes.index(case.gpus)] if case.gpus in sizes else None


# --- rows ---

PAPER_FLOW: Final = {MOLDABLE: ("-96.7", "≤ -15.1"), MALLEABLE: ("-97.2", "≤ -42.5")}
"""Changes of the average flow time per task against Rigid FCFS in percent: with 6 GPUs, and with more (§V-D)."""
PAPER_STRETCH: Final = {MOLDABLE: "≤ -26.7", MALLEABLE: "≤ -36.2"}
PAPER_MAX_STRETCH: Final = "-50.0…-62.5"
PAPER_JOB_FLOW: Final = {MOLDABLE: "≤ -6.7", MALLEABLE: "≤ -17.5"}


def rows(results: Results) -> tuple[dict[str, Any], ...]:
    """Return one row per case; changes are against `FCFS` with as many GPUs."""
    return tuple(_row(results, case) for case in results.reports)


def _row(results: Results, case: EquipartitionCase) -> dict[str, Any]:
    report, like = results.reports[case], results.like_the_papers(case)
    per_job = report.per_job is not None
    return {
        "workload": case.part.value,
        "arrival": case.arrival.value,
        "gpus": case.gpus,
        "paper_gpus": like,
        "policy": case.policy.label,
        "restart_s": case.restart_s,
        "utilisation": report.utilisation,
        "flow_s": flow_mean(report),
        "flow_%": results.change(flow_mean, case),
        "paper_flow_%": _paper_flow(case, like),
        "max_flow_%": results.change(flow_max, case),
        "stretch": stretch_mean(report),
        "stretch_%": results.change(stretch_mean, case),
        "paper_stretch_%": PAPER_STRETCH.get(case.policy) if _as_in_fig_4(case, like) else None,
        "max_stretch_%": results.change(stretch_max, case),
        "paper_max_stretch_%": _paper_max_stretch(case, like),
        "job_flow_%": results.change(job_flow_mean, case) if per_job else None,
        "paper_job_flow_%": PAPER_JOB_FLOW.get(case.policy) if _as_in_fig_4(case, like) else None,
        "makespan_%": results.change(makespan, case),
        "paper_makespan_%": _paper_makespan(case),
        "restarts": report.preemptions + report.resizes,
    }


def _as_in_fig_4(case: EquipartitionCase, like: int | None) -> bool:
    return not case.part.of_processors and like is not None and not case.restart_s


def _paper_flow(case: EquipartitionCase, like: int | None) -> str | None:
    if _as_in_fig_4(case, like) and case.policy in PAPER_FLOW:
        saturated, any_size = PAPER_FLOW[case.policy]
        return saturated if like == PAPER_GPUS[0] else any_size
    if case.part.of_processors and case.arrival is Arrival.SUBMIT and case.policy in (MOLDABLE, MOLDABLE_PRO):
        return "> 0" if case.gpus <= CPUS else "< 0"
    return None


def _paper_max_stretch(case: EquipartitionCase, like: int | None) -> str | None:
    middle = _as_in_fig_4(case, like) and like in PAPER_GPUS[1:4]
    return PAPER_MAX_STRETCH if middle and case.policy in PAPER_STRETCH else None


def _paper_makespan(case: EquipartitionCase) -> str | None:
    if case.arrival is not Arrival.OFFLINE:
        return None
    return {MOLDABLE: "> 0", MALLEABLE: "≥ -2.7"}.get(case.policy)


def details(results: Results) -> dict[str, Any]:
    """Return every case with all of its measures."""
    return {"runs": [_in_full(case, report) for case, report in results.reports.items()]}


def _in_full(case: EquipartitionCase, report: Report) -> dict[str, Any]:
    known = asdict(case) | {"policy": case.policy.label, "options": dict(case.policy.options)}
    return {"case": known, "report": report.to_json()}


# --- assumptions ---


def assumptions(results: Results, within: Extent) -> tuple[str, ...]:
    """Return in words what was simulated, what the paper leaves open, and what only ``--full`` shows."""
    return (*_workloads(results, within), *ASSUMPTIONS)


def _workloads(results: Results, within: Extent) -> Iterator[str]:
    yield f"{'in full' if within.full else 'small, made-up workloads'}, seed {within.seed}"
    yield from () if within.full else SMALLER
    for part in results.sizes:
        for arrival in (Arrival.SUBMIT, Arrival.START):
            gpus = min(CPUS, results.sizes[part][0]) if arrival is Arrival.SUBMIT else CPUS
            report = results.reports.get(EquipartitionCase(part, gpus, FCFS, arrival))
            if report is not None:
                skipped = "; ".join(f"{count} left out: {why}" for why, count in report.skipped.items() if count)
                yield f"{part} by {arrival} times, {gpus} GPUs: {report.jobs} tasks" + (
                    f" ({skipped})" if skipped else ""
                )


SMALLER: Final = (
    "both are chosen such that what the paper says can be seen with so few tasks: of the first few of the real ones "
    "the one or two longest tasks or largest bags decide everything",
    "like-hpc2n has the load, the mean run time and nearly the processors of HPC2N, in bursts; but run times vary less "
    "and wide tasks run shorter",
    "few-bags has a quarter of the paper's load on clusters that are smaller by as much, in bags of at most 60 tasks",
    f"only --full shows, with the traces in the folder that {TRACES} names: HPC2N and Philly themselves; utilisation, "
    "which is almost the same under all policies unless the last few tasks are a large part, as here; makespans with "
    f"other than {CPUS} processors, for the same reason; and what the defaults of a live cluster save",
)
ASSUMPTIONS: Final = (
    "the paper's algorithms know no nodes: all GPUs are on one",
    "HPC2N: a processor counts as a GPU; tasks of more processors than the cluster has are left out under all "
    "policies, so that all of them run the same tasks; arrival is the time of submission (by the paper's words it "
    "might be the start: with 240 processors that is shown beside it); linear speed-up, free restarts",
    "the paper's own GPU workload is not public. Philly stands in for it: of the virtual cluster with the most of them "
    "all jobs that the paper would call tasks (one GPU, at least 300 s); 20 % of a 12 GiB GPU each, the paper's "
    "typical need; virtual clusters have no users, so there is nothing to say per job",
    "bags of tasks stand in for it, too: users, tasks, jobs, days and mean volume of the paper, all else drawn",
    "cluster sizes for these: the smallest that is not overloaded (volume over time from the first to the last "
    "submission), and 2, 4, 8, 16 times that, as the paper's 6 to 96; half of it for utilisation only",
    "p is 1/4 to 4 for moldable and malleable policies, 1 for rigid ones; 1 to 4 for the 10 % of the bags with more "
    "than half of a GPU's memory, because the paper says that they may not share a GPU",
    "the speed-up curve is dl-sublinear, made from published measurements, because the values of Fig. 1 are not "
    "published: two tasks share a GPU at 0.75 each, more gain nothing further",
    "preemption of whoever has more than 300 s of work left on one GPU, at any time; what a restart costs is added "
    "each time a task is resized, moved or suspended",
    "rigid: whoever does not fit is passed over; other open points of the algorithms are in "
    "docs/explanation/policies/moldable.md",
    "live: the same policy with its defaults, which resize nobody for less than the restart costs, nor within a minute",
)
