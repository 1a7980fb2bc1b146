"""Runs sets of jobs of unknown length on the fly or by reservations (seed 002, "system's perspective")."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import numpy as np
from ebbtide_core.estimates.work import RUNS_REMEMBERED
from ebbtide_core.events import AttemptPlaced, Event
from ebbtide_core.model.types import WHOLE
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.reserving.cost import CostModel
from ebbtide_core.reserving.distribution import Distribution
from ebbtide_core.reserving.live import next_reservation
from ebbtide_core.reserving.sequences import STRATEGIES

from ebbtide_sim.engine import SimulatedWorld, Simulation
from ebbtide_sim.metrics import Metrics
from ebbtide_sim.reserving.sampling import draw
from ebbtide_sim.sources import JobSource, Recorded
from ebbtide_sim.workload import SimJob
from ebbtide_sim.workloads.nodes import SimNode

MEAN_S: Final = 3600.0
SAVE_S: Final = 0.01 * MEAN_S
"""The seconds that a checkpoint takes; resuming from it takes as long again."""
SCRIPT: Final = "train"


class RequestModel(Enum):
    """What a job asks for, and what happens to it if that is too short."""

    NOTHING = "nothing"
    KNOWN = "its run time, known"
    LONGEST = "the longest run time of all"
    KILLED = "a reservation; killed at its end, it starts again with the next"
    SAVED = "a reservation (--time auto); it checkpoints at its end, and goes on in the next"


@dataclass(frozen=True, slots=True)
class Regime:
    """How a set of jobs is scheduled. ``strategy`` names that of the reservation sequence, "" for none."""

    name: str
    policy: str
    asks: RequestModel
    strategy: str = ""


HISTORY: Final = "history"
"""The live cluster's own strategy: the sequence that would have cost least for the last runs of the script."""

ON_THE_FLY: Final = Regime("on the fly", "fifo", RequestModel.NOTHING)
REGIMES: Final = (
    ON_THE_FLY,
    Regime("known run times", "reservation", RequestModel.KNOWN),
    Regime("the longest run time", "reservation", RequestModel.LONGEST),
    Regime("killed", "reservation", RequestModel.KILLED, HISTORY),
    Regime("killed", "reservation", RequestModel.KILLED, "equal-probability"),
    Regime("killed", "reservation", RequestModel.KILLED, "mean-doubling"),
    Regime("checkpoint", "fifo", RequestModel.SAVED, HISTORY),
    Regime("checkpoint", "reservation", RequestModel.SAVED, HISTORY),
)


@dataclass(frozen=True, slots=True)
class JobSet:
    """Jobs that arrive together: their run times (seconds) and GPUs.

    ``earlier`` are the run times of their script's last runs, and ``scale`` is what run times of ``law`` are multiplied
    by.
    """

    law: Distribution
    scale: float
    runs: Sequence[float]
    gpus: Sequence[int]
    earlier: Sequence[float]


def draw_set(law: Distribution, jobs: int, sizes: Sequence[int], rng: np.random.Generator) -> JobSet:
    """Draw a set whose run times follow ``law``, scaled to a mean of `MEAN_S`; all ``sizes`` are equally likely."""
    scale = MEAN_S / law.mean
    drawn = [float(run) * scale for run in draw(law, jobs + RUNS_REMEMBERED, rng)]
    gpus = [int(size) for size in rng.choice(np.array(sizes), size=jobs)]
    return JobSet(law, scale, drawn[:jobs], gpus, drawn[jobs:])


@dataclass(frozen=True, slots=True)
class JobSetOutcome:
    """The measures of a set from its arrival on, in seconds; ``wasted_gpu_s`` were held without contributing work."""

    makespan_s: float
    mean_flow_s: float
    used_gpu_s: float
    wasted_gpu_s: float
    starts: float
    """Starts per job on average: one, or one per reservation."""


@dataclass(slots=True)
class CountingMetrics(Metrics):
    """Metrics that also count how often jobs started since ``began``."""

    began: float = 0.0
    starts: int = 0

    def recorded(self, now: float, event: Event) -> None:
        """Count the event, and starts too."""
        Metrics.recorded(self, now, event)
        if type(event) is AttemptPlaced and now >= self.began:
            self.starts += 1


def play(jobs: JobSet, regime: Regime, nodes: Sequence[SimNode]) -> JobSetOutcome:
    """Run the set under ``regime``, after its ``earlier`` runs of the same script on the same cluster."""
    began = sum(jobs.earlier) + 1.0  # all earlier runs have ended by then
    earlier = [_job(f"earlier {n}", 0.0, run, 1) for n, run in enumerate(jobs.earlier)]
    own = [_job(str(n), began, run, size) for n, (run, size) in enumerate(zip(jobs.runs, jobs.gpus, strict=True))]
    metrics = CountingMetrics(began=began)
    killed = regime.asks is RequestModel.KILLED
    world = SimulatedWorld(restart_cost_s=0.0 if killed else SAVE_S, resumable=not killed, requested=True)
    source = _source(jobs, regime, earlier, own)
    Simulation(nodes, source, create_policy(regime.policy, {}), [metrics], world).run()
    return _outcome(metrics, own)


def _outcome(metrics: CountingMetrics, own: Sequence[SimJob]) -> JobSetOutcome:
    """Sum up the measures; all reservations of a job count as one job."""
    mine = [tally for tally in metrics.tallies.values() if tally.job.submit_s >= metrics.began]
    ends = [tally.ended - metrics.began for tally in mine if tally.ended is not None]
    assert len(ends) == len(own), "every job ends once"
    used, work = sum(tally.held_gpu_s for tally in mine), sum(job.runtime_s * job.gpus_max / WHOLE for job in own)
    return JobSetOutcome(
        makespan_s=max(ends),
        mean_flow_s=sum(ends) / len(ends),
        used_gpu_s=used,
        wasted_gpu_s=used - work if used > work * (1 + 1e-9) else 0.0,  # ignore rounding errors
        starts=metrics.starts / len(own),
    )


def _job(id: str, at: float, run: float, gpus: int) -> SimJob:
    size = gpus * WHOLE
    return SimJob(
        id=id, submit_s=at, runtime_s=run, user="ann", script=SCRIPT, gpus_min=size, gpus_max=size, grace_s=SAVE_S
    )


def _source(jobs: JobSet, regime: Regime, earlier: Sequence[SimJob], own: Sequence[SimJob]) -> JobSource:
    match regime.asks:
        case RequestModel.NOTHING:
            return Recorded([*earlier, *own])
        case RequestModel.KNOWN:
            return Recorded([*earlier, *(replace(job, time_limit_s=job.runtime_s, grace_s=0.0) for job in own)])
        case RequestModel.LONGEST:
            longest = max(jobs.runs)
            return Recorded([*earlier, *(replace(job, time_limit_s=longest, grace_s=0.0) for job in own)])
        case RequestModel.SAVED:
            return Recorded([*earlier, *(replace(job, time_auto=True) for job in own)])
        case RequestModel.KILLED:
            return Resubmissions(earlier, own, sequence(jobs, regime.strategy))


def sequence(jobs: JobSet, strategy: str) -> list[float]:
    """Return the reservations of ``strategy``, in seconds, up to the first that is long enough for all ``jobs``."""
    longest = max(jobs.runs)
    found: list[float] = []
    for reserved in _reservations(jobs, strategy):
        found.append(reserved)
        if reserved >= longest:
            break
    return found


def _reservations(jobs: JobSet, strategy: str) -> Iterator[float]:
    if strategy != HISTORY:
        for reserved in STRATEGIES[strategy](jobs.law, CostModel(), 200):
            yield reserved * jobs.scale
        return
    reserved = 0.0
    while True:
        reserved, _ = next_reservation(jobs.earlier, reserved)
        yield reserved


class Resubmissions:
    """Jobs that are killed at the end of a reservation; their user then requests the next one, for all the work."""

    def __init__(self, earlier: Iterable[SimJob], jobs: Iterable[SimJob], reservations: Sequence[float]) -> None:
        self._reservations = reservations
        self._jobs = Recorded([*earlier, *(self._asking(job, 0) for job in jobs)])
        self._asked: dict[str, int] = {}
        self._again: list[SimJob] = []

    def _asking(self, job: SimJob, number: int) -> SimJob:
        return replace(job, time_limit_s=self._reservations[number], grace_s=0.0)

    def next_time(self) -> float | None:
        """Return when the next job arrives; a repeated request follows the end of a reservation."""
        return self._jobs.next_time()

    def take(self, now: float) -> Iterator[SimJob]:
        """Yield the jobs that are killed and requested again, then those that arrive first."""
        again, self._again = self._again, []
        yield from (replace(job, submit_s=now) for job in again)
        yield from self._jobs.take(now)

    def ended(self, job: SimJob) -> None:
        """Request the next reservation if that of ``job`` was too short."""
        if job.time_limit_s is None or job.runtime_s <= job.time_limit_s:
            return
        name, _, _ = job.id.partition(".")
        self._asked[name] = number = self._asked.get(name, 0) + 1
        self._again.append(replace(self._asking(job, number), id=f"{name}.{number}"))
