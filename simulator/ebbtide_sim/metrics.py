"""The measures of a simulation, as the papers define them.

- *flow time*: from arrival to completion (seed 001 §III-C);
- *stretch*: flow time over volume, the run time alone on one GPU (seed 001 §III-C);
- *slowdown*: 1 + waiting over execution time (seed 000 §3); waiting is all of the flow time in which a job did not
  compute, grace periods and restarts included; lost work does not count as computing;
- *utilisation*: volume of all jobs over GPUs x makespan (seed 001); it may exceed 1 if jobs share GPUs. *busy* is the
  fraction of all GPU time in which a job held the GPU;
- *re-schedule interval*: from the first request to preempt a job to its next start;
- *fairness*: how alike the users' mean slowdowns are, and their mean stretches, by `jain_index`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

import numpy as np
from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.model.types import WHOLE, JobClass, StopCause

from ebbtide_sim.workload import SimJob

Summary = dict[str, float | None]
"""Statistics by name; None where there are no values."""

FULL: Final = ("mean", "p50", "p95", "p99", "max")
TAIL: Final = ("p50", "p95", "p99")
INTERVAL: Final = ("p50", "p95")
_STATISTICS: Final[Mapping[str, Callable[[Any], float]]] = {
    "mean": lambda values: float(values.mean()),
    "p50": lambda values: float(np.percentile(values, 50)),
    "p95": lambda values: float(np.percentile(values, 95)),
    "p99": lambda values: float(np.percentile(values, 99)),
    "max": lambda values: float(values.max()),
}


def summarise(values: Iterable[float], statistics: Sequence[str]) -> Summary:
    """Return the ``statistics`` of ``values``; percentiles are interpolated linearly."""
    array = np.fromiter(values, float)
    return {name: _STATISTICS[name](array) if array.size else None for name in statistics}


def jain_index(values: Sequence[float]) -> float:
    """Return (Σx)² / (n Σx²): 1 if all values are equal, 1/n if one of them is all (Jain, Chiu and Hawe, 1984)."""
    array = np.asarray(values, float)
    return float(array.sum() ** 2 / (array.size * np.square(array).sum()))


@dataclass(slots=True, eq=False)
class Tally:
    """The record of one job: times in simulated seconds, GPU time in GPU-seconds, work in seconds on one GPU."""

    job: SimJob
    work: float
    ended: float | None = None
    dropped: bool = False
    computed_s: float = 0.0
    lost_s: float = 0.0
    lost_work: float = 0.0
    held_gpu_s: float = 0.0
    useful_gpu_s: float = 0.0
    preemptions: int = 0
    resizes: int = 0
    share: int = 0
    since: float = 0.0
    preempted_at: float | None = None
    sticky: bool = False

    @property
    def flow_s(self) -> float:
        """Seconds from arrival to completion."""
        assert self.ended is not None
        return self.ended - self.job.submit_s

    @property
    def waiting_s(self) -> float:
        """Seconds of the flow time in which the job did not compute."""
        return max(0.0, self.flow_s - self.computed_s)

    @property
    def slowdown(self) -> float:
        """1 + waiting over execution time, as flow time over computing time."""
        return self.flow_s / self.computed_s if self.computed_s > 0 else 1.0

    @property
    def stretch(self) -> float:
        """Flow time over volume; 1 for a job without work."""
        return self.flow_s / self.work if self.work > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The measures of one simulation, as defined above; times in seconds, fractions as numbers."""

    policy: str
    jobs: int
    finished: int
    makespan_s: float
    utilisation: float
    busy: float
    flow_time_s: Summary
    waiting_s: Summary
    stretch: Summary
    slowdown: dict[str, Summary]
    by_class: dict[str, dict[str, Any]]
    preemptions: int
    preempted_jobs: int
    preemptions_per_job_max: int
    resizes: int
    reschedule_interval_s: Summary
    wasted_gpu_s: float
    dropped: int
    skipped: Mapping[str, int]
    sim_wall_s: float
    events: int
    fairness: dict[str, float] | None = None
    per_job: dict[str, Summary] | None = None
    per_class: dict[str, dict[str, Any]] | None = None
    supply: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints.

        ``fairness`` is there only for several users, ``per_job`` for bags of tasks, ``per_class`` for several
        priorities, ``supply`` for borrowed nodes.
        """
        names = (name for name in self.__slots__ if getattr(self, name) is not None)
        return {name: dict(value) if isinstance(value := getattr(self, name), Mapping) else value for name in names}


@dataclass(slots=True)
class Metrics:
    """An observer that keeps a tally of every job."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    intervals: list[float] = field(default_factory=list)

    def submitted(self, now: float, job: SimJob, work: float) -> None:
        """Start the tally of ``job``."""
        self.tallies[job.id] = Tally(job, work)

    def dropped(self, now: float, job: str, reason: str) -> None:
        """Mark ``job`` as dropped."""
        self.tallies[job].dropped = True

    def computed(self, job: str, attempt: int, seconds: float, work: float, kept: bool) -> None:
        """Add up what ``job`` computed, or what it lost."""
        tally = self.tallies[job]
        if kept:
            tally.computed_s += seconds
            tally.useful_gpu_s += seconds * tally.share / WHOLE
        else:
            tally.lost_s += seconds
            tally.lost_work += work

    def recorded(self, now: float, event: Event) -> None:
        """Count an event about a job."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, now, event)

    def _placed(self, now: float, event: e.AttemptPlaced) -> None:
        tally = self.tallies[event.job]
        share = event.allocation.share
        if tally.share and tally.share != share:
            tally.resizes += 1
        tally.share, tally.since = share, now
        tally.sticky = event.sticky
        if tally.preempted_at is not None:
            self.intervals.append(now - tally.preempted_at)
            tally.preempted_at = None

    def _stopping(self, now: float, event: e.StopRequested) -> None:
        if event.cause is not StopCause.PREEMPTED:
            return
        tally = self.tallies[event.job]
        if tally.preempted_at is None:  # else the same request is made again, with less grace
            tally.preemptions += 1
            tally.preempted_at = now

    def _exited(self, now: float, event: e.AttemptExited) -> None:
        tally = self.tallies[event.job]
        if not event.exit.stop_requested:
            tally.ended = now
        # The simulator frees an attempt's room at its exit.
        tally.held_gpu_s += (now - tally.since) * tally.share / WHOLE

    # --- the report ---

    def report(
        self,
        policy: str,
        gpus: int,
        skipped: Mapping[str, int],
        wall_s: float,
        events: int,
        lent_gpu_s: float = 0.0,
        supply: dict[str, Any] | None = None,
        until: float | None = None,
    ) -> Report:
        """Sum up the tallies.

        ``gpus`` is the cluster's own GPU count, ``lent_gpu_s`` the GPU-seconds that it borrowed, and ``wall_s`` the
        real time of the run in seconds. ``supply`` is what was borrowed. With ``until``, the report ends then instead
        of with the last job, and the work of unfinished jobs is what they did.
        """
        tallies = list(self.tallies.values())
        done = [tally for tally in tallies if tally.ended is not None]
        first = min((tally.job.submit_s for tally in tallies), default=0.0)
        last = max((tally.ended for tally in done if tally.ended is not None), default=first)
        makespan = (last if until is None else until) - first
        worked = done if until is None else tallies
        held = sum(tally.held_gpu_s for tally in tallies)
        room = gpus * makespan + lent_gpu_s
        return Report(
            policy=policy,
            jobs=len(tallies),
            finished=len(done),
            makespan_s=makespan,
            utilisation=sum(tally.work for tally in worked if tally.job.gpus_max) / room if room else 0.0,
            busy=held / room if room else 0.0,
            flow_time_s=summarise((tally.flow_s for tally in done), FULL),
            waiting_s=summarise((tally.waiting_s for tally in done), FULL),
            stretch=summarise((tally.stretch for tally in done), FULL),
            slowdown=_slowdowns(done),
            by_class=by_class(done),
            preemptions=sum(tally.preemptions for tally in tallies),
            preempted_jobs=sum(tally.preemptions > 0 for tally in tallies),
            preemptions_per_job_max=max((tally.preemptions for tally in tallies), default=0),
            resizes=sum(tally.resizes for tally in tallies),
            reschedule_interval_s=summarise(self.intervals, INTERVAL),
            wasted_gpu_s=held - sum(tally.useful_gpu_s for tally in tallies),
            dropped=sum(tally.dropped for tally in tallies),
            skipped=dict(skipped),
            sim_wall_s=wall_s,
            events=events,
            fairness=fairness(done),
            per_job=per_bag(done) if any(tally.job.bag for tally in tallies) else None,
            per_class=per_class(done) if len({tally.job.priority for tally in tallies}) > 1 else None,
            supply=supply,
        )


_HANDLERS: Final[dict[type[Event], Callable[[Metrics, float, Any], None]]] = {
    e.AttemptPlaced: Metrics._placed,
    e.StopRequested: Metrics._stopping,
    e.AttemptExited: Metrics._exited,
}


def _slowdowns(done: Sequence[Tally]) -> dict[str, Summary]:
    of = {kind.value: [tally.slowdown for tally in done if tally.job.job_class is kind] for kind in JobClass}
    return {
        "te": summarise(of["te"], TAIL),
        "be": summarise(of["be"], TAIL),
        "all": summarise((tally.slowdown for tally in done), TAIL),
    }


def by_class(done: Iterable[Tally]) -> dict[str, dict[str, Any]]:
    """Return by class of job how many finished, how long they waited, and their flow times."""
    of = {kind.value: [tally for tally in done if tally.job.job_class is kind] for kind in JobClass}
    return {
        kind: {
            "jobs": len(tallies),
            "waiting_s": summarise((tally.waiting_s for tally in tallies), FULL),
            "flow_time_s": summarise((tally.flow_s for tally in tallies), FULL),
        }
        for kind, tallies in of.items()
    }


def fairness(done: Iterable[Tally]) -> dict[str, float] | None:
    """Return `jain_index` of the users' mean slowdowns, and of their mean stretches; None without several users."""
    users: dict[str, list[Tally]] = {}
    for tally in done:
        users.setdefault(tally.job.user, []).append(tally)
    if len(users) < 2:
        return None
    return {
        "slowdown": jain_index([fmean([tally.slowdown for tally in tallies]) for tallies in users.values()]),
        "stretch": jain_index([fmean([tally.stretch for tally in tallies]) for tallies in users.values()]),
    }


def per_bag(done: Iterable[Tally]) -> dict[str, Summary]:
    """Return flow time and stretch of bags of tasks (seed 001's "jobs"), from first arrival to last completion."""
    bags: dict[str, list[Tally]] = {}
    for tally in done:
        bags.setdefault(tally.job.bag or f"job {tally.job.id}", []).append(tally)
    flows, stretches = [], []
    for bag in bags.values():
        flow = max(tally.ended or 0.0 for tally in bag) - min(tally.job.submit_s for tally in bag)
        volume = sum(tally.work for tally in bag)
        flows.append(flow)
        stretches.append(flow / volume if volume else 1.0)
    return {"flow_time_s": summarise(flows, FULL), "stretch": summarise(stretches, FULL)}


def per_class(done: Iterable[Tally]) -> dict[str, dict[str, Any]]:
    """Return by priority (seed 004's class) the response times, with and without evictions, and sticky slot use."""
    classes: dict[int, list[Tally]] = {}
    for tally in done:
        classes.setdefault(tally.job.priority, []).append(tally)
    return {
        str(priority): {
            "jobs": len(tallies),
            "evictions": sum(tally.preemptions for tally in tallies),
            "response_s": summarise((tally.flow_s for tally in tallies), FULL),
            "response_evicted_s": summarise((tally.flow_s for tally in tallies if tally.preemptions), FULL),
            "response_never_evicted_s": summarise((tally.flow_s for tally in tallies if not tally.preemptions), FULL),
            "sticky": sum(tally.sticky for tally in tallies),
        }
        for priority, tallies in sorted(classes.items())
    }
