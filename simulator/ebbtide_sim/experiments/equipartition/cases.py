"""The simulated cases: workloads, cluster sizes and policies of seed 001."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
from ebbtide_core.estimates.work import LINEAR
from ebbtide_core.model.types import WHOLE

from ebbtide_sim.engine import SimulatedWorld
from ebbtide_sim.metrics import Report
from ebbtide_sim.simulate import Scenario, simulate
from ebbtide_sim.speedup import DL_SUBLINEAR
from ebbtide_sim.workload import SimJob, Workload, WorkloadError, elastic, offline
from ebbtide_sim.workloads.bags import BagMix, bags
from ebbtide_sim.workloads.loading import load_workload
from ebbtide_sim.workloads.nodes import SimNode
from ebbtide_sim.workloads.table import GIB

TRACES: Final = "EBB_TRACES"
HPC2N_FILE: Final = "HPC2N-2002-2.2-cln.swf.gz"
PHILLY_FILE: Final = "pollux_philly.csv"

CPUS: Final = 240
"""The processors of HPC2N, which are also the most that its tasks may have (seed 001, §VI)."""
LOAD_OF_HPC2N: Final = 0.6
"""The volume of all HPC2N tasks over its processors x the time from the first to the last submission."""
MEAN_RUN_S: Final = 17_000.0
"""The mean run time of HPC2N's tasks, in seconds."""
HPC2N_SIZES: Final = (120, 240, 480, 960)

GPU_MEM: Final = 12 * GIB
"""The memory of the paper's Tesla M40, in bytes."""
TYPICAL_MEM: Final = GPU_MEM // 5
"""The memory that a task "typically" needs, 20 % of a GPU (seed 001, §II)."""
SHORTEST_S: Final = 300.0
"""The least seconds on one GPU that make a process a task in the paper (§V-A)."""
PAPER_GPUS: Final = (6, 12, 24, 48, 96)
PAPER_TASKS: Final = 77_677
FEW_BAGS: Final = BagMix(bags_per_day=8, size_max=60)
"""A quarter of the paper's load in smaller bags; with the paper's sizes, so few tasks would make a handful of bags."""
FEW_BAGS_TASKS: Final = 2000


class WorkloadPart(StrEnum):
    """The workloads: the paper's second one or one like it, and stand-ins for its first one, which is not public."""

    HPC2N = "hpc2n"
    LIKE_HPC2N = "like-hpc2n"
    PHILLY = "philly"
    BAGS = "bags"
    FEW_BAGS = "few-bags"

    @property
    def of_processors(self) -> bool:
        """Whether tasks use whole processors (§VI), not shares of GPUs (§V)."""
        return self in (WorkloadPart.HPC2N, WorkloadPart.LIKE_HPC2N)


class Arrival(StrEnum):
    """When tasks arrive: at their recorded submission, at their recorded start, or all at once."""

    SUBMIT = "submit"
    START = "start"
    OFFLINE = "offline"


SMALL_TASKS: Final = {Arrival.SUBMIT: 1500, Arrival.OFFLINE: 4000}
"""The number of processor tasks unless run in full; if all arrive at once, many take no longer than few."""


@dataclass(frozen=True, slots=True)
class PolicyVariant:
    """A policy with its options."""

    label: str
    name: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def rigid(self) -> bool:
        """Whether tasks have exactly the GPUs that they ask for."""
        return self.name.startswith("rigid")

    @property
    def malleable(self) -> bool:
        """Whether running tasks are resized."""
        return self.name.startswith("malleable")


_UNRESTRICTED: Final = (("min_work_s", "300"), ("resize_after_s", "0"), ("gain_restarts", "0"))
"""The paper's options: a task with more than 300 s of work left may be preempted at any time, at any cost."""

FCFS: Final = PolicyVariant("rigid-fcfs", "rigid-fcfs")
SHORTEST: Final = PolicyVariant("rigid-shortest", "rigid-shortest")
MOLDABLE: Final = PolicyVariant("moldable-equipartition", "moldable-equipartition")
MALLEABLE: Final = PolicyVariant("malleable-equipartition", "malleable-equipartition", _UNRESTRICTED)
MOLDABLE_PRO: Final = PolicyVariant("moldable-proportional", "moldable-proportional")
MALLEABLE_PRO: Final = PolicyVariant("malleable-proportional", "malleable-proportional", _UNRESTRICTED)
LIVE: Final = PolicyVariant("malleable-equipartition (live)", "malleable-equipartition")
"""The policy with a live cluster's defaults: a task grows only if that saves more time than a restart costs."""

POLICIES: Final = (FCFS, SHORTEST, MOLDABLE, MALLEABLE, MOLDABLE_PRO, MALLEABLE_PRO)
NON_CLAIRVOYANT: Final = (FCFS, MOLDABLE, MALLEABLE)
RESTARTS_S: Final = (150.0, 300.0)
"""The costs of a preemption in the paper's Fig. 5, in seconds, beside 0."""
COSTLY: Final = {WorkloadPart.PHILLY: (MALLEABLE, LIVE), WorkloadPart.FEW_BAGS: (MALLEABLE,)}
"""The policies that are simulated with `RESTARTS_S`, by workload."""


@dataclass(frozen=True, slots=True)
class EquipartitionCase:
    """One simulation of the experiment."""

    part: WorkloadPart
    gpus: int
    policy: PolicyVariant
    arrival: Arrival = Arrival.SUBMIT
    restart_s: float = 0.0

    def __str__(self) -> str:
        cost = f", {self.restart_s:g} s per restart" if self.restart_s else ""
        return f"{self.part}, {self.arrival}, {self.gpus} GPUs, {self.policy.label}{cost}"


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent: in full, with the traces in folder ``traces``; or small synthetic workloads if that is ""."""

    traces: str
    seed: int

    @property
    def full(self) -> bool:
        """Whether the paper's workloads are simulated, as far as they are known."""
        return bool(self.traces)

    @property
    def parts(self) -> tuple[WorkloadPart, ...]:
        """The workloads that are simulated."""
        return (
            (WorkloadPart.HPC2N, WorkloadPart.PHILLY, WorkloadPart.BAGS)
            if self.full
            else (WorkloadPart.LIKE_HPC2N, WorkloadPart.FEW_BAGS)
        )


def extent(full: bool, seed: int) -> Extent:
    """Return the extent; raise `WorkloadError` if ``full`` and the environment names no folder of traces."""
    traces = os.environ.get(TRACES, "") if full else ""
    if full and not traces:
        raise WorkloadError(f"{TRACES}: not set; --full needs the folder with {HPC2N_FILE} and {PHILLY_FILE}")
    return Extent(traces, seed)


# --- workloads ---


@lru_cache(maxsize=2)
def tasks(part: WorkloadPart, arrival: Arrival, extent: Extent) -> Workload:
    """Load or make the tasks of ``part`` as recorded: rigid, and arriving over time even for `Arrival.OFFLINE`."""
    match part:
        case WorkloadPart.HPC2N:
            moment = Arrival.START if arrival is Arrival.START else Arrival.SUBMIT
            return load_workload(str(Path(extent.traces, HPC2N_FILE)), arrival=moment)
        case WorkloadPart.LIKE_HPC2N:
            return like_hpc2n(SMALL_TASKS[arrival], extent.seed)
        case WorkloadPart.PHILLY:
            return philly_tasks(load_workload(str(Path(extent.traces, PHILLY_FILE))))
        case WorkloadPart.BAGS:
            return bags(PAPER_TASKS, extent.seed)
        case WorkloadPart.FEW_BAGS:
            return bags(FEW_BAGS_TASKS, extent.seed, FEW_BAGS)


def philly_tasks(philly: Workload) -> Workload:
    """Select the jobs that the paper would call tasks, of the virtual cluster with the most of them."""
    found = [job for job in philly.jobs if job.gpus_max == WHOLE and job.runtime_s >= SHORTEST_S]
    [(largest, _)] = Counter(job.user for job in found).most_common(1)
    jobs = [replace(job, gpu_mem_bytes=TYPICAL_MEM) for job in found if job.user == largest]
    start = jobs[0].submit_s
    return replace(philly, jobs=[replace(job, submit_s=job.submit_s - start) for job in jobs])


PROCESSORS: Final = {1: 0.42, 2: 0.22, 4: 0.14, 8: 0.1, 16: 0.07, 32: 0.05}
"""The fraction of tasks by processors in the workload like HPC2N; nearly as in HPC2N."""
BURST: Final = 20
"""The mean number of these tasks that arrive together."""


def like_hpc2n(count: int, seed: int) -> Workload:
    """Make tasks with the load, the mean run time and nearly the processors of HPC2N, in bursts.

    With HPC2N's spread of run times, the one or two longest of so few tasks would decide which policy does better. So
    the spread is smaller here, and tasks of p processors run 1/√p as long.
    """
    rng = np.random.default_rng(seed)
    burst = np.cumsum(rng.random(count) < 1 / BURST)
    times = np.cumsum(rng.exponential(size=count + 1))[burst]
    processors = rng.choice(list(PROCESSORS), size=count, p=list(PROCESSORS.values()))
    runs = rng.lognormal(sigma=0.5, size=count) / np.sqrt(processors)
    runs *= MEAN_RUN_S / runs.mean()
    span = float((runs * processors).sum()) / (LOAD_OF_HPC2N * CPUS)
    times = (times - times[0]) * span / (times[-1] - times[0])
    drawn = zip(times.tolist(), runs.tolist(), (processors * WHOLE).tolist(), strict=True)
    return Workload("like HPC2N", [_task(index, *task) for index, task in enumerate(drawn)])


def _task(index: int, submit_s: float, run_s: float, share: int) -> SimJob:
    return SimJob(id=str(index), submit_s=submit_s, runtime_s=run_s, gpus_min=share, gpus_max=share)


def load(jobs: Sequence[SimJob]) -> float:
    """Return how many GPUs the tasks keep busy on average: their volume over the time of their submissions."""
    volume = sum(job.runtime_s * job.gpus_max / WHOLE for job in jobs)
    return volume / max(jobs[-1].submit_s - jobs[0].submit_s, 1.0)


# --- cases ---


def gpu_sizes(workload: Workload) -> tuple[int, ...]:
    """Return cluster sizes as crowded as the paper's: the smallest not overloaded one, and 2, 4, 8 and 16 times that.

    The paper's workload saturates 6 GPUs, and the paper shows 6 to 96.
    """
    saturated = math.ceil(load(workload.jobs))
    return tuple(saturated * gpus // PAPER_GPUS[0] for gpus in PAPER_GPUS)


def all_cases(sizes: dict[WorkloadPart, tuple[int, ...]]) -> list[EquipartitionCase]:
    """Return all cases, from the cluster sizes of each workload."""
    return [case for part, of_part in sizes.items() for case in _cases(part, of_part)]


def _cases(part: WorkloadPart, sizes: Sequence[int]) -> Iterator[EquipartitionCase]:
    yield from (EquipartitionCase(part, gpus, policy) for gpus in sizes for policy in POLICIES)
    match part:
        case WorkloadPart.HPC2N:
            yield from (EquipartitionCase(part, CPUS, policy, Arrival.START) for policy in (FCFS, MOLDABLE))
            yield from (EquipartitionCase(part, gpus, policy, Arrival.OFFLINE) for gpus in sizes for policy in POLICIES)
        case WorkloadPart.LIKE_HPC2N:
            yield from (EquipartitionCase(part, CPUS, policy, Arrival.OFFLINE) for policy in POLICIES)
        case WorkloadPart.PHILLY | WorkloadPart.BAGS | WorkloadPart.FEW_BAGS:
            yield from (EquipartitionCase(part, max(1, sizes[0] // 2), policy) for policy in NON_CLAIRVOYANT)
            costs = product(RESTARTS_S, sizes, COSTLY.get(part, ()))
            yield from (EquipartitionCase(part, gpus, policy, restart_s=cost) for cost, gpus, policy in costs)


def unshared(workload: Workload) -> Workload:
    """Return the workload with at least a whole GPU for every task that needs more than half of a GPU's memory."""
    jobs = [
        replace(job, gpus_min=max(job.gpus_min, WHOLE)) if job.gpu_mem_bytes * 2 > GPU_MEM else job
        for job in workload.jobs
    ]
    return replace(workload, jobs=jobs)


def run_case(case: EquipartitionCase, extent: Extent) -> Report:
    """Simulate ``case``."""
    return simulate(scenario_of(case, extent))


def scenario_of(case: EquipartitionCase, extent: Extent) -> Scenario:
    """Return the workload of ``case``, elastic unless its policy is rigid, on one node with all GPUs."""
    workload = tasks(case.part, case.arrival, extent)
    speedup = LINEAR if case.part.of_processors else DL_SUBLINEAR
    low, high = (WHOLE, CPUS * WHOLE) if case.part.of_processors else (WHOLE // 4, 4 * WHOLE)
    fitting = [job for job in workload.jobs if job.gpus_max <= case.gpus * WHOLE]
    left_out = {f"more than {case.gpus} processors": len(workload.jobs) - len(fitting)}
    workload = replace(workload, jobs=fitting, skipped=dict(workload.skipped) | left_out)
    if case.arrival is Arrival.OFFLINE:
        workload = offline(workload)
    if not case.policy.rigid:
        workload = unshared(elastic(workload, low, high, speedup))
    return Scenario(
        workload=workload,
        nodes=(SimNode(name="node", gpus=case.gpus, gpu_mem_bytes=GPU_MEM),),
        policy=case.policy.name,
        options=dict(case.policy.options),
        world=SimulatedWorld(speedup=speedup, restart_cost_s=case.restart_s),
    )
