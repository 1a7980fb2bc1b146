"""Holds `tide` against the policies of the papers, each on the paper's own workload, with what a live cluster knows."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Final

from ebbtide_core.model.types import WHOLE

from ebbtide_sim.draw import COLORS, drawn
from ebbtide_sim.engine import SimulatedWorld
from ebbtide_sim.experiments import Check, ExperimentReport, Progress
from ebbtide_sim.experiments import fitgpp as fitgpp_study
from ebbtide_sim.experiments.equipartition.cases import (
    CPUS,
    EquipartitionCase,
    PolicyVariant,
    WorkloadPart,
    extent,
    gpu_sizes,
    scenario_of,
    tasks,
)
from ebbtide_sim.experiments.equipartition.cases import Arrival as TaskArrival
from ebbtide_sim.experiments.hybrid import SMALLER, STICKY, HybridCase, measure, run_tasks
from ebbtide_sim.experiments.running import Run, run_all
from ebbtide_sim.simulate import Scenario, simulate
from ebbtide_sim.workload import SimJob, Workload
from ebbtide_sim.workloads.google import CLASSES

DESCRIPTION = "Tide against the policies of seeds 000, 001, 003 and 004, each on its own ground"

RESTARTS_S: Final = (0.0, 30.0, 150.0, 300.0)
"""What a preemption or a resize costs a task, in seconds."""
ABLATED_S: Final = 30.0
"""What a restart costs where something is taken from `tide`, in seconds."""
URGENT: Final = 9
"""The least of the high classes of HYBRID's workload."""
FACTOR: Final = 10
"""By how much a wrong declaration is off, in either direction."""

ASSUMPTIONS: Final = (
    "all policies have the defaults of a live cluster, except pri and hybrid, which have the paper's options",
    "nobody declares a run time unless it is said: tide knows what has run so far, and how long earlier jobs of the "
    "user and class ran; the generated jobs report no progress, and are of no script",
    f"wrong: half of the jobs declare a run time that is {FACTOR} times too long or too short, the others none",
    "the bags are the smaller ones of the equipartition experiment, in full, too",
    "tasks of bags, Philly and HPC2N are elastic, as in the equipartition experiment; arrivals are those of each "
    "experiment of its own",
    "without users' histories: each task is of a user of its own; without resizing: each has the one GPU that it asks "
    "for; without sharing: none has less than a GPU",
    "Jain's index is over users, by the mean slowdown, or stretch, of each; of Philly one virtual cluster is taken, "
    "and its users are not known",
    "±: half of the interval that holds the mean with 95 % confidence, by Student's t over the seeds",
)


class Ground(StrEnum):
    """Whose workload it is."""

    FITGPP = "fitgpp"
    BAGS = "bags"
    PHILLY = "philly"
    HPC2N = "hpc2n"
    HYBRID = "hybrid"


class Knowledge(StrEnum):
    """What is known of run times."""

    NOTHING = "nothing"
    EXACT = "exact"
    WRONG = "wrong"


class Ablation(StrEnum):
    """What is taken from `tide`, by taking it from the tasks."""

    NOTHING = "nothing"
    USERS = "users' histories"
    RESIZING = "resizing"
    SHARING = "sharing"


@dataclass(frozen=True, slots=True)
class TideCase:
    """One simulation. ``gpus`` is the size of the cluster where that varies; ``restart_s`` what a restart costs."""

    ground: Ground
    policy: str
    seed: int = 0
    gpus: int = 0
    restart_s: float = 0.0
    knowledge: Knowledge = Knowledge.NOTHING
    resumable: bool = True
    without: Ablation = Ablation.NOTHING

    def __str__(self) -> str:
        size = f", {self.gpus} GPUs" if self.gpus else ""
        cost = f", {self.restart_s:g} s per restart" if self.restart_s else ""
        known = "" if self.knowledge is Knowledge.NOTHING else f", {self.knowledge} times"
        less = "" if self.without is Ablation.NOTHING else f" without {self.without}"
        return f"{self.ground}{size}{cost}, {self.policy}{less}{known}{'' if self.resumable else ', not resumable'}"


Measures = Mapping[str, float]
"""The measures of a case by name; times in seconds."""
Spread = Mapping[str, tuple[float, float]]
"""The mean of each measure over the seeds, and half of its 95 % confidence interval."""


@dataclass(frozen=True, slots=True)
class TideExtent:
    """How much is simulated, and the first seed."""

    full: bool
    first: int

    @property
    def seeds(self) -> range:
        """The seeds of the generated workloads."""
        return range(self.first, self.first + (5 if self.full else 3))

    @property
    def fitgpp_jobs(self) -> int:
        """The jobs of FitGpp's workload."""
        return 8192 if self.full else 2048

    def part(self, ground: Ground) -> WorkloadPart:
        """Return which workload of the equipartition experiment stands for ``ground``."""
        match ground:
            case Ground.PHILLY:
                return WorkloadPart.PHILLY
            case Ground.HPC2N:
                return WorkloadPart.HPC2N if self.full else WorkloadPart.LIKE_HPC2N
            case _:
                return WorkloadPart.FEW_BAGS

    def cases(self) -> Iterator[TideCase]:
        """Yield all cases; raise `WorkloadError` if the traces that it takes in full are missing."""
        for seed, policy in product(self.seeds, ("fifo", "fitgpp", "fair-share", "tide")):
            yield TideCase(Ground.FITGPP, policy, seed)
        for seed, known in product(self.seeds, (Knowledge.EXACT, Knowledge.WRONG)):
            yield TideCase(Ground.FITGPP, "tide", seed, knowledge=known)
        malleable = ("malleable-equipartition", "malleable-proportional", "fair-share", "tide")
        for ground in (Ground.BAGS, Ground.PHILLY) if self.full else (Ground.BAGS,):
            seeds = self.seeds if ground is Ground.BAGS else [self.first]
            for seed, cost, policy in product(seeds, RESTARTS_S, malleable):
                yield TideCase(ground, policy, seed, self.size(ground, seed), cost)
        for seed, less in product(self.seeds, (Ablation.USERS, Ablation.RESIZING, Ablation.SHARING)):
            yield TideCase(Ground.BAGS, "tide", seed, self.size(Ground.BAGS, seed), ABLATED_S, without=less)
        for size, policy in product((CPUS, 2 * CPUS), ("rigid-fcfs", "malleable-equipartition", "tide")):
            yield TideCase(Ground.HPC2N, policy, self.first, size)
        for resumable, policy in product((True, False), ("pri", "hybrid", "tide")):
            yield TideCase(Ground.HYBRID, policy, self.first, resumable=resumable)

    def size(self, ground: Ground, seed: int) -> int:
        """Return how many GPUs a cluster has that is as crowded as the paper's with 12."""
        return gpu_sizes(tasks(self.part(ground), TaskArrival.SUBMIT, extent(self.full, seed)))[1]


def simulate_case(case: TideCase, within: TideExtent) -> Measures:
    """Simulate ``case``; return its measures."""
    match case.ground:
        case Ground.FITGPP:
            jobs = fitgpp_study.record(within.fitgpp_jobs, case.seed, fitgpp_study.MAIN)[1]
            workload = Workload("fitgpp", jobs)
            return _simulated(case, Scenario(workload=workload, nodes=fitgpp_study.cluster(), policy=case.policy))
        case Ground.HYBRID:
            return _hybrid(case, within)
        case _:
            alike = EquipartitionCase(
                within.part(case.ground), case.gpus, PolicyVariant(case.policy, case.policy), restart_s=case.restart_s
            )
            scenario = scenario_of(alike, extent(within.full, case.seed))
            return _simulated(case, replace(scenario, workload=ablated(scenario.workload, case.without)))


def ablated(workload: Workload, without: Ablation) -> Workload:
    """Return the workload with tasks that cannot use what `tide` is ``without``."""

    def less(job: SimJob) -> SimJob:
        match without:
            case Ablation.NOTHING:
                return job
            case Ablation.USERS:
                return replace(job, user=f"user of {job.id}")
            case Ablation.RESIZING:
                return replace(job, gpus_min=WHOLE, gpus_max=WHOLE)
            case Ablation.SHARING:
                return replace(job, gpus_min=max(job.gpus_min, WHOLE))

    return replace(workload, jobs=[less(job) for job in workload.jobs])


def _simulated(case: TideCase, scenario: Scenario) -> Measures:
    world: SimulatedWorld = replace(scenario.world, requested=case.knowledge is not Knowledge.EXACT)
    report = simulate(replace(scenario, workload=declared(scenario.workload, case), world=world))
    slowdowns = {
        f"{kind}_{percentile}": value
        for kind in ("te", "be")
        for percentile in ("p50", "p95")
        if (value := report.slowdown[kind][percentile]) is not None
    }
    return {
        "flow_s": report.flow_time_s["mean"] or 0.0,
        "stretch_max": report.stretch["max"] or 0.0,
        **slowdowns,
        **{f"jain_{name}": value for name, value in (report.fairness or {}).items()},
        "preemptions": report.preemptions,
        "preempted_jobs": report.preempted_jobs,
        "resizes": report.resizes,
    }


def declared(workload: Workload, case: TideCase) -> Workload:
    """Return the workload with the run times that its jobs declare: none, or wrong ones of about half of them."""
    draws = random.Random(case.seed)
    wrong = case.knowledge is Knowledge.WRONG

    def says(runtime_s: float) -> float | None:
        if not wrong or draws.random() < 0.5:
            return None
        return runtime_s * FACTOR if draws.random() < 0.5 else runtime_s / FACTOR

    return replace(workload, jobs=[replace(job, requested_s=says(job.runtime_s)) for job in workload.jobs])


def _hybrid(case: TideCase, within: TideExtent) -> Measures:
    small = 1 if within.full else SMALLER
    options = {} if case.policy == "tide" else {"min_run_s": "0", "seed": str(case.seed)}
    if case.policy == "hybrid":
        options["sticky"] = str(max(1, round(STICKY / small)))
    alike = HybridCase(case.policy, case.policy, 0, case.resumable, small, case.seed)
    tallies = list(run_tasks(alike, options, declared=False))
    found = measure(tallies)

    def response(of: Callable[[int], bool]) -> float:
        times = [one.flow_s for one in tallies if one.ended is not None and of(CLASSES - one.job.priority)]
        return mean(times or [0.0])

    return {
        "flow_s": response(lambda kind: True),
        "urgent_s": response(lambda kind: kind >= URGENT),
        "class_0_s": response(lambda kind: kind == 0),
        "preemptions": found.ne,
        "lost_work_s": found.we_s,
    }


# --- the report ---


def run(full: bool, seed: int, jobs: int, progress: Progress) -> ExperimentReport:
    """Run all cases, with seeds from ``seed`` on. In full, Philly's and HPC2N's traces come from folder EBB_TRACES."""
    within = TideExtent(full, seed)
    todo = list(within.cases())
    results = run_all([Run(str(case), partial(simulate_case, case, within)) for case in todo], jobs, progress)
    return report_of(dict(zip(todo, results, strict=True)), f"{within.fitgpp_jobs} jobs of FitGpp's workload")


def report_of(results: Mapping[TideCase, Measures], size: str) -> ExperimentReport:
    """Sum up the seeds, and hold `tide` against the others."""
    by_case: dict[TideCase, list[Measures]] = {}
    for case, measures in results.items():
        by_case.setdefault(replace(case, seed=0, gpus=case.gpus if case.ground is Ground.HPC2N else 0), []).append(
            measures
        )
    found = {case: spread_of(runs) for case, runs in by_case.items()}
    return ExperimentReport(
        name="tide",
        rows=tuple(_row(case, spread, len(by_case[case])) for case, spread in found.items()),
        checks=tuple(_checks(found)),
        assumptions=(size, *ASSUMPTIONS),
        draw=partial(_draw, found),
    )


def spread_of(runs: Sequence[Measures]) -> Spread:
    """Return the mean of each measure, and half its confidence interval, over the runs that have it; 0 of one run."""
    from scipy.stats import t

    def half(column: Sequence[float]) -> float:
        count = len(column)
        return float(t.ppf(0.975, count - 1)) / sqrt(count) * stdev(column) if count > 1 else 0.0

    names = dict.fromkeys(name for run in runs for name in run)
    columns = {name: [run[name] for run in runs if name in run] for name in names}
    return {name: (mean(column), half(column)) for name, column in columns.items()}


def _row(case: TideCase, spread: Spread, seeds: int) -> dict[str, Any]:
    return {
        "case": str(case),
        "seeds": seeds,
        **{name: f"{value:.4g}" + (f" ±{half:.2g}" if half else "") for name, (value, half) in spread.items()},
    }


def _checks(found: Mapping[TideCase, Spread]) -> Iterator[Check]:
    def at_most(name: str, ours: TideCase, measure: str, factor: float, *others: TideCase) -> Check:
        """Check that a measure of `tide` is at most ``factor`` times the least of the ``others``."""
        best = min(others, key=lambda other: found[other][measure][0])
        mine, theirs = found[ours][measure][0], found[best][measure][0]
        detail = f"{mine:.4g} against {theirs:.4g} of {best.policy}, at most {factor:g} times"
        return Check(f"{ours.ground}: {name}", mine <= factor * theirs, detail)

    tide = TideCase(Ground.FITGPP, "tide")
    fifo, fitgpp = replace(tide, policy="fifo"), replace(tide, policy="fitgpp")
    yield at_most("trial-and-error jobs are hardly slower (p95)", tide, "te_p95", 1.05, fitgpp)
    be_p50 = found[tide]["be_p50"][0]
    yield Check("fitgpp: most best-effort jobs hardly wait (p50)", be_p50 <= 1.05, f"{be_p50:.3f}, at most 1.05")
    yield at_most("best-effort jobs are half as slow (p95)", tide, "be_p95", 0.5, fifo)
    yield at_most("half as many jobs are preempted", tide, "preempted_jobs", 0.5, fitgpp)
    exact, wrong = replace(tide, knowledge=Knowledge.EXACT), replace(tide, knowledge=Knowledge.WRONG)
    yield at_most("run times, if known, shorten flow times", exact, "flow_s", 1.0, tide)
    yield at_most("wrong declarations cost little", wrong, "flow_s", 1.15, tide)
    for ours in found:
        others = [case for case in found if replace(case, policy="tide") == ours and case != ours]
        fair = [case for case in others if case.policy == "fair-share"]
        malleable = [case for case in others if case.policy.startswith("malleable")]
        equal = [case for case in malleable if case.policy == "malleable-equipartition"]
        where = f"{ours.gpus} GPUs" if ours.gpus else f"{ours.restart_s:g} s per restart"
        if ours.policy != "tide" or ours.ground is Ground.FITGPP or ours.without is not Ablation.NOTHING:
            continue
        if ours.ground is Ground.HYBRID:
            yield from _hybrid_checks(at_most, ours)
        elif ours.ground is Ground.HPC2N:
            yield at_most(f"{where}: shorter flow times", ours, "flow_s", 1.0, *equal)
            yield at_most(f"{where}: no worse than first come, first served", ours, "flow_s", 1.0, *others)
        else:
            yield at_most(f"{where}: flow times a fifth shorter", ours, "flow_s", 0.8, *malleable)
            yield at_most(f"{where}: shorter than under fair share", ours, "flow_s", 0.95, *fair)
            yield at_most(f"{where}: the largest stretch is no larger", ours, "stretch_max", 1.0, *equal)
            if "jain_slowdown" in found[ours]:
                [(mine, _), (theirs, _)] = (found[case]["jain_slowdown"] for case in (ours, *fair))
                detail = f"Jain's index {mine:.3f} against {theirs:.3f} of fair-share"
                yield Check(f"{ours.ground}: {where}: users' slowdowns are as alike", mine >= theirs, detail)


def _hybrid_checks(at_most: Callable[..., Check], ours: TideCase) -> Iterator[Check]:
    pri, hybrid = replace(ours, policy="pri"), replace(ours, policy="hybrid")
    where = "resumable" if ours.resumable else "not resumable"
    yield at_most(f"{where}: fewer evictions", ours, "preemptions", 1.0, hybrid)
    yield at_most(f"{where}: no more work is lost", ours, "lost_work_s", 1.0, hybrid)
    yield at_most(f"{where}: high classes respond no later", ours, "urgent_s", 1.0, pri)
    yield at_most(f"{where}: class 0 responds sooner", ours, "class_0_s", 1.0, hybrid)


_PANELS: Final = (
    (Ground.FITGPP, "te_p95", "FitGpp's jobs: slowdown of trial-and-error jobs, p95"),
    (Ground.FITGPP, "be_p95", "slowdown of best-effort jobs, p95"),
    (Ground.FITGPP, "preempted_jobs", "preempted jobs"),
    (Ground.BAGS, "flow_s", "bags of tasks: mean flow time (s)"),
    (Ground.HPC2N, "flow_s", "HPC2N: mean flow time (s)"),
    (Ground.HYBRID, "preemptions", "HYBRID's tasks: evictions"),
)


def _draw(found: Mapping[TideCase, Spread], path: Path) -> None:
    """Draw one panel per claim: a measure by policy, its confidence interval, and the restart costs side by side."""
    with drawn(path, 14, 8) as figure:
        for axes, (ground, name, title) in zip(figure.subplots(2, 3).flat, _PANELS, strict=True):
            as_it_is = [case for case in found if case.without is Ablation.NOTHING]
            cases = [case for case in as_it_is if case.ground is ground and case.knowledge is Knowledge.NOTHING]
            policies = list(dict.fromkeys(case.policy for case in cases))
            settings = list(dict.fromkeys((case.restart_s, case.gpus, case.resumable) for case in cases))
            for index, setting in enumerate(settings):
                of = {case.policy: found[case][name] for case in cases if _setting(case) == setting}
                wide = 0.8 / len(settings)
                places = [place + wide * (index - (len(settings) - 1) / 2) for place in range(len(policies))]
                heights, halves = zip(*(of[policy] for policy in policies), strict=True)
                label = _words(setting)
                axes.bar(places, heights, wide, yerr=halves, color=COLORS[index], label=label, capsize=2)
            axes.set_xticks(range(len(policies)), policies, rotation=20, fontsize=8)
            axes.set_title(title, fontsize=10)
            if len(settings) > 1:
                axes.legend(fontsize=7)


def _setting(case: TideCase) -> tuple[float, int, bool]:
    return case.restart_s, case.gpus, case.resumable


def _words(setting: tuple[float, int, bool]) -> str:
    restart_s, gpus, resumable = setting
    if gpus:
        return f"{gpus} GPUs"
    return f"{restart_s:g} s per restart" if resumable else "not resumable"
