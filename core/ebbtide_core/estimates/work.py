"""Estimates how much work a job still has to do, and says where the estimate comes from.

Work is counted in seconds on one GPU: an attempt on a share p of GPUs does speedup(p) of work per second, by the curve
that was known of its script when it was placed, or else by that of the cluster. Clairvoyant policies ask for the
remaining work. It comes, in this order, from what the submitter declared, from the job's reported progress, from
earlier runs of the same script by the same user, or from the time limit, which is only a bound.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import Final

from ebbtide_core.job.job import Job
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import WHOLE

Curve = Callable[[int], float]
"""Returns the speed on a share of GPUs, in parts, relative to one GPU."""
Script = tuple[str, str]
"""The user, and the name or command: jobs with the same two are runs of the same script."""
RUNS_REMEMBERED: Final = 50
"""The last runs of one script that estimates are made from."""


@frozen
class Speedup:
    """The speed relative to one GPU by the share of GPUs: ``points`` (share in parts, speed) joined by straight lines.

    Below the first point speed is in proportion to the share; above the last point it is constant. Without points the
    speed is the number of GPUs.
    """

    points: tuple[tuple[int, float], ...] = ()
    _speeds: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The speeds that were worked out: proportional policies ask for the same few again and again."""

    def __call__(self, share: int) -> float:
        """Return the speed on ``share`` parts of GPUs; a job without GPUs has speed 1."""
        if share == 0:
            return 1.0
        if not self.points:
            return share / WHOLE
        if (speed := self._speeds.get(share)) is None:
            speed = self._speeds[share] = self._at(share)
        return speed

    def _at(self, share: int) -> float:
        index = bisect_right(self.points, (share, math.inf))
        if index == 0:
            first, speed = self.points[0]
            return speed * share / first
        low, low_speed = self.points[index - 1]
        if index == len(self.points):
            return low_speed
        high, high_speed = self.points[index]
        return low_speed + (high_speed - low_speed) * (share - low) / (high - low)


LINEAR: Final = Speedup()


@frozen
class Assumptions:
    """What is assumed of a job until something is measured of it or its script."""

    speedup: Speedup = LINEAR
    can_suspend: bool = False
    """Whether a job counts as `Job.proved` from its submit."""


NOTHING_PROVED: Final = Assumptions()
"""Speed is the number of GPUs, and a job has to prove that it can suspend."""


class EstimateSource(Enum):
    """The source of an estimate."""

    DECLARED = "declared by its submitter"
    PROGRESS = "from its progress"
    EARLIER_RUNS = "from earlier runs"
    TIME_LIMIT = "from its time limit"


@frozen
class Estimate:
    """The remaining work, in seconds on one GPU, and the source of this estimate."""

    work_s: float
    source: EstimateSource


@dataclass(slots=True)
class History:
    """Completed runs by script, as (work, running time) in seconds; part of the state, so it survives a restart."""

    runs: dict[Script, deque[tuple[float, float]]] = field(default_factory=dict)

    def add(self, job: Job) -> None:
        """Remember the work and running time of ``job``, which is completed."""
        if key := script_of(job):
            self.add_run(key, job.times.work_s, job.times.ran_s)

    def add_run(self, script: Script, work_s: float, ran_s: float) -> None:
        """Remember a run of ``script`` by its work and running time, in seconds."""
        self.runs.setdefault(script, deque(maxlen=RUNS_REMEMBERED)).append((work_s, ran_s))

    def typical(self, job: Job) -> float | None:
        """Return the median work of earlier runs of the same script, in seconds on one GPU; None if there are none."""
        runs = self._of(job)
        return median(work for work, _ in runs) if runs else None

    def run_times(self, job: Job) -> list[float]:
        """Return the running times of earlier runs of the same script, in seconds."""
        return [ran_s for _, ran_s in self._of(job)]

    def _of(self, job: Job) -> Sequence[tuple[float, float]]:
        key = script_of(job)
        return self.runs.get(key, ()) if key else ()


def script_of(job: Job) -> Script | None:
    """Return the script that ``job`` is a run of; None for a job without a command."""
    spec = job.spec
    return (job.user, spec.name or " ".join(spec.command)) if spec.command else None


def work_done(job: Job, now: float, speedup: Curve) -> float:
    """Return the work done in all attempts of ``job`` until ``now``, in seconds on one GPU."""
    live = job.live
    if live is None or live.started is None or live.stop is not None:
        return job.times.work_s
    return job.times.work_s + max(0.0, now - live.started) * (live.speedup or speedup)(live.allocation.share)


def remaining(job: Job, now: float, history: History, speedup: Speedup) -> Estimate | None:
    """Estimate the work that ``job`` still has to do; return None if nothing is known."""
    done = work_done(job, now, speedup)
    if job.spec.work_s is not None:
        return Estimate(max(0.0, job.spec.work_s - done), EstimateSource.DECLARED)
    progress = job.measured.counted
    a_step = job.measured.work_of_a_step(done)
    if progress is not None and progress.total and a_step is not None:
        return Estimate(a_step * max(0, progress.total - progress.step), EstimateSource.PROGRESS)
    typical = history.typical(job)
    if typical is not None:
        return Estimate(max(0.0, typical - done), EstimateSource.EARLIER_RUNS)
    if job.spec.time_limit_s is not None:
        left = max(0.0, job.spec.time_limit_s - job.running_s(now))
        last = job.attempt
        speed = speedup(job.gpus_max) if last is None else (last.speedup or speedup)(last.allocation.share)
        return Estimate(left * speed, EstimateSource.TIME_LIMIT)
    return None


def estimated_at(job: Job) -> float | None:
    """Return the Unix time from which the estimate of the remaining work counts; None if no attempt has started.

    That is the start of the running attempt, or the last report of progress.
    """
    live = job.live
    if live is None or live.started is None:
        return None
    return live.started if job.spec.work_s is not None else max(live.started, job.measured.progress_at)


def expected_end(job: Job, history: History, speedup: Speedup) -> float | None:
    """Return the Unix time at which the running attempt of ``job`` would finish; None if nothing is known.

    The answer does not change while the attempt runs and nothing new is reported.
    """
    known_at = estimated_at(job)
    if known_at is None:
        return None
    left, live = remaining(job, known_at, history, speedup), job.attempts[-1]
    return None if left is None else known_at + left.work_s / (live.speedup or speedup)(live.allocation.share)
