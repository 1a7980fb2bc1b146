"""What is simulated: workloads, cluster sizes and policies of seed 001."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from ebbtide_core.model import WHOLE
from ebbtide_core.work import LINEAR

from ebbtide_sim.engine import World
from ebbtide_sim.metrics import Report
from ebbtide_sim.simulate import Scenario, simulate
from ebbtide_sim.speedup import DL_SUBLINEAR
from ebbtide_sim.workload import SimJob, Workload, WorkloadError, elastic, load_workload, offline
from ebbtide_sim.workloads.bags import bags
from ebbtide_sim.workloads.nodes import SimNode
from ebbtide_sim.workloads.table import GIB

TRACES: Final = "EBB_TRACES"
HPC2N_FILE: Final = "HPC2N-2002-2.2-cln.swf.gz"
PHILLY_FILE: Final = "pollux_philly.csv"

CPUS: Final = 240
"""Processors of HPC2N, and the most that its tasks may have (seed 001, §VI)."""
LOAD_OF_HPC2N: Final = 0.6
"""Volume of all its tasks over its processors and the time from the first to the last submission."""
HPC2N_SIZES: Final = (120, 240, 480, 960)

GPU_MEM: Final = 12 * GIB
"""Of the paper's Tesla M40."""
TYPICAL_MEM: Final = GPU_MEM // 5
"""20 % of a GPU: what a task "typically" needs (seed 001, §II)."""
SHORTEST_S: Final = 300.0
"""What the paper takes for a task: a process that was on one GPU for this long (§V-A)."""
PAPER_GPUS: Final = (6, 12, 24, 48, 96)
SMALL: Final = 1200
"""Tasks per workload unless the experiment is run in full."""
PAPER_TASKS: Final = 77_677


class Part(StrEnum):
    """The workloads: the paper's second one, and two in place of its first, which is not public."""

    HPC2N = "hpc2n"
    PHILLY = "philly"
    BAGS = "bags"


class Arrival(StrEnum):
    """When tasks arrive: when they were submitted, when they once started, or all at once."""

    SUBMIT = "submit"
    START = "start"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with its options."""

    label: str
    name: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def rigid(self) -> bool:
        """Whether tasks have just the GPUs that they ask for."""
        return self.name.startswith("rigid")

    @property
    def malleable(self) -> bool:
        """Whether those that run are resized."""
        return self.name.startswith("malleable")


_UNRESTRICTED: Final = (("min_work_s", "300"), ("resize_after_s", "0"), ("gain_restarts", "0"))
"""The paper's: whoever has more than 300 s of work left may be preempted at any time, whatever that costs."""

FCFS: Final = Policy("rigid-fcfs", "rigid-fcfs")
SHORTEST: Final = Policy("rigid-shortest", "rigid-shortest")
MOLDABLE: Final = Policy("moldable-equipartition", "moldable-equipartition")
MALLEABLE: Final = Policy("malleable-equipartition", "malleable-equipartition", _UNRESTRICTED)
MOLDABLE_PRO: Final = Policy("moldable-proportional", "moldable-proportional")
MALLEABLE_PRO: Final = Policy("malleable-proportional", "malleable-proportional", _UNRESTRICTED)
LIVE: Final = Policy("malleable-equipartition (live)", "malleable-equipartition")
"""With the defaults of a live cluster: nobody grows unless that saves more time than the restart costs."""

POLICIES: Final = (FCFS, SHORTEST, MOLDABLE, MALLEABLE, MOLDABLE_PRO, MALLEABLE_PRO)
NON_CLAIRVOYANT: Final = (FCFS, MOLDABLE, MALLEABLE)
RESTARTS_S: Final = (150.0, 300.0)
"""What a preemption costs in the paper's Fig. 5, beside nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation."""

    part: Part
    gpus: int
    policy: Policy
    arrival: Arrival = Arrival.SUBMIT
    restart_s: float = 0.0

    def __str__(self) -> str:
        cost = f", {self.restart_s:g} s per restart" if self.restart_s else ""
        return f"{self.part}, {self.arrival}, {self.gpus} GPUs, {self.policy.label}{cost}"


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is simulated: of the real traces in ``traces`` if there are any, and in full or the first `SMALL`."""

    traces: str
    full: bool
    seed: int


def extent(full: bool, seed: int) -> Extent:
    """With the traces that the environment names. `WorkloadError` if they are needed and it names none."""
    traces = os.environ.get(TRACES, "")
    if full and not traces:
        raise WorkloadError(f"{TRACES}: not set; --full needs the folder with {HPC2N_FILE} and {PHILLY_FILE}")
    return Extent(traces, full, seed)


# --- workloads ---


@lru_cache(maxsize=2)
def tasks(part: Part, arrival: Arrival, extent: Extent) -> Workload:
    """The tasks of ``part`` as they were, rigid, and arriving one after the other."""
    count = None if extent.full else SMALL
    match part:
        case Part.HPC2N if extent.traces:
            return load_workload(str(Path(extent.traces, HPC2N_FILE)), jobs=count, arrival=arrival)
        case Part.HPC2N:
            return made_up(SMALL, extent.seed)
        case Part.PHILLY:
            return philly_tasks(load_workload(str(Path(extent.traces, PHILLY_FILE))), count)
        case Part.BAGS:
            return bags(count or PAPER_TASKS, extent.seed)


def philly_tasks(philly: Workload, count: int | None) -> Workload:
    """What the paper would call tasks, of the virtual cluster with the most of them; the first ``count`` if set."""
    found = [job for job in philly.jobs if job.gpus_max == WHOLE and job.runtime_s >= SHORTEST_S]
    [(largest, _)] = Counter(job.user for job in found).most_common(1)
    jobs = [replace(job, gpu_mem_bytes=TYPICAL_MEM) for job in found if job.user == largest][:count]
    start = jobs[0].submit_s
    return replace(philly, jobs=[replace(job, submit_s=job.submit_s - start) for job in jobs])


def made_up(count: int, seed: int) -> Workload:
    """A stand-in for HPC2N where its trace is missing: bags of tasks with 1 to 64 processors each, at the same load."""
    source = bags(count, seed)
    rng = np.random.default_rng(seed)
    exponents = dict.fromkeys(job.bag for job in source.jobs)
    processors = dict(zip(exponents, (2 ** rng.integers(0, 7, len(exponents))).tolist(), strict=True))
    jobs = [_with_processors(job, processors[job.bag]) for job in source.jobs]
    slower = LOAD_OF_HPC2N * CPUS / load(jobs)
    jobs = [replace(job, runtime_s=job.runtime_s * slower) for job in jobs]
    return Workload("made up", jobs, notes=source.notes)


def _with_processors(job: SimJob, count: int) -> SimJob:
    return replace(job, gpus_min=count * WHOLE, gpus_max=count * WHOLE, gpu_mem_bytes=0)


def load(jobs: Sequence[SimJob]) -> float:
    """How many GPUs the tasks keep busy on average: their volume over the time in which they were submitted."""
    volume = sum(job.runtime_s * job.gpus_max / WHOLE for job in jobs)
    return volume / max(jobs[-1].submit_s - jobs[0].submit_s, 1.0)


# --- cases ---


def gpu_sizes(workload: Workload) -> tuple[int, ...]:
    """Clusters that are as crowded as the paper's: the smallest that is not overloaded, and 2, 4, 8 and 16 times that.

    The paper's saturates with 6 GPUs, and it shows 6 to 96.
    """
    saturated = math.ceil(load(workload.jobs))
    return tuple(saturated * gpus // PAPER_GPUS[0] for gpus in PAPER_GPUS)


def all_cases(sizes: dict[Part, tuple[int, ...]]) -> list[Case]:
    """All that is simulated, by the cluster sizes of each workload."""
    return [case for part, of_part in sizes.items() for case in _cases(part, of_part)]


def _cases(part: Part, sizes: Sequence[int]) -> Iterator[Case]:
    yield from (Case(part, gpus, policy) for gpus in sizes for policy in POLICIES)
    if part is Part.HPC2N:
        yield from (Case(part, CPUS, policy, Arrival.START) for policy in (FCFS, MOLDABLE))
        yield from (Case(part, gpus, policy, Arrival.OFFLINE) for gpus in sizes for policy in POLICIES)
        return
    yield from (Case(part, max(1, sizes[0] // 2), policy) for policy in NON_CLAIRVOYANT)
    if part is Part.PHILLY:
        yield from costly(part, sizes)


def costly(part: Part, sizes: Sequence[int]) -> Iterator[Case]:
    """Those of Fig. 5, where restarts are not free."""
    for cost in RESTARTS_S:
        yield from (Case(part, gpus, policy, restart_s=cost) for gpus in sizes for policy in (MALLEABLE, LIVE))


def unshared(workload: Workload) -> Workload:
    """The same, but whoever needs more than half of a GPU's memory gets a whole one at least."""
    jobs = [
        replace(job, gpus_min=max(job.gpus_min, WHOLE)) if job.gpu_mem_bytes * 2 > GPU_MEM else job
        for job in workload.jobs
    ]
    return replace(workload, jobs=jobs)


def run_case(case: Case, extent: Extent) -> Report:
    """Simulate ``case``."""
    arrival = Arrival.START if case.arrival is Arrival.START else Arrival.SUBMIT
    workload = tasks(case.part, arrival, extent)
    speedup = LINEAR if case.part is Part.HPC2N else DL_SUBLINEAR
    low, high = (WHOLE, CPUS * WHOLE) if case.part is Part.HPC2N else (WHOLE // 4, 4 * WHOLE)
    fitting = [job for job in workload.jobs if job.gpus_max <= case.gpus * WHOLE]
    left_out = {f"more than {case.gpus} processors": len(workload.jobs) - len(fitting)}
    workload = replace(workload, jobs=fitting, skipped=dict(workload.skipped) | left_out)
    if case.arrival is Arrival.OFFLINE:
        workload = offline(workload)
    if not case.policy.rigid:
        workload = unshared(elastic(workload, low, high, speedup))
    return simulate(
        Scenario(
            workload=workload,
            nodes=(SimNode(name="node", gpus=case.gpus, gpu_mem_bytes=GPU_MEM),),
            policy=case.policy.name,
            options=dict(case.policy.options),
            world=World(speedup=speedup, restart_cost_s=case.restart_s),
        )
    )
