"""How much computing a job still has to do, and how well that is known.

Work is counted in seconds on one GPU: an attempt on a share p of GPUs does speedup(p) of it per second, by the curve
that was known of its script when it was placed, else by the one of the cluster. Clairvoyant policies ask for what
remains. It is known, in this order, from what the submitter declared, from the progress that the
job reported, from earlier runs of the same script by the same user, or from its time limit, which is only a bound.
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
from ebbtide_core.model.types import WHOLE

Curve = Callable[[int], float]
"""The speed on so many parts of GPUs, relative to one GPU."""
Script = tuple[str, str]
"""What makes two jobs runs of the same script: their user, and their name or command."""
RUNS_REMEMBERED: Final = 50
"""Runs of one script that estimates are made from; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """Speed relative to one GPU over the share of GPUs: ``points`` (share in parts, speed), joined by straight lines.

    Below the first point and above the last, speed is in proportion to the share at that point, or stays as it is.
    Without points, it is the number of GPUs.
    """

    points: tuple[tuple[int, float], ...] = ()

    def __call__(self, share: int) -> float:
        """The speed on ``share`` parts of GPUs; a job without GPUs has speed 1."""
        if share == 0:
            return 1.0
        if not self.points:
            return share / WHOLE
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


class EstimateSource(Enum):
    """Where an estimate comes from."""

    DECLARED = "declared by its submitter"
    PROGRESS = "from its progress"
    EARLIER_RUNS = "from earlier runs"
    TIME_LIMIT = "from its time limit"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Work that remains, in seconds on one GPU, and where that is known from."""

    work_s: float
    source: EstimateSource


@dataclass(slots=True)
class History:
    """Completed runs by user and script, as (work, running time); kept by the fold, so that it survives a restart."""

    runs: dict[Script, deque[tuple[float, float]]] = field(default_factory=dict)

    def add(self, job: Job) -> None:
        """Remember how long ``job``, which is completed, took."""
        if key := script_of(job):
            self.add_run(key, job.work_s, job.ran_s)

    def add_run(self, script: Script, work_s: float, ran_s: float) -> None:
        """Remember a run of ``script``."""
        self.runs.setdefault(script, deque(maxlen=RUNS_REMEMBERED)).append((work_s, ran_s))

    def typical(self, job: Job) -> float | None:
        """The median work of earlier runs of the same script; None if there are none."""
        runs = self._of(job)
        return median(work for work, _ in runs) if runs else None

    def run_times(self, job: Job) -> list[float]:
        """The running times of earlier runs of the same script, in seconds."""
        return [ran_s for _, ran_s in self._of(job)]

    def _of(self, job: Job) -> Sequence[tuple[float, float]]:
        key = script_of(job)
        return self.runs.get(key, ()) if key else ()


def script_of(job: Job) -> Script | None:
    """The script that ``job`` is a run of; None for one without a command."""
    spec = job.spec
    return (job.user, spec.name or " ".join(spec.command)) if spec.command else None


def work_done(job: Job, now: float, speedup: Curve) -> float:
    """Work done in all attempts of ``job`` until ``now``, in seconds on one GPU."""
    live = job.live
    if live is None or live.started is None or live.stop is not None:
        return job.work_s
    return job.work_s + max(0.0, now - live.started) * (live.speedup or speedup)(live.allocation.share)


def remaining(job: Job, now: float, history: History, speedup: Speedup) -> Estimate | None:
    """The work that ``job`` still has to do; None if nothing tells."""
    done = work_done(job, now, speedup)
    if job.spec.work_s is not None:
        return Estimate(max(0.0, job.spec.work_s - done), EstimateSource.DECLARED)
    progress = job.progress
    if progress is not None and progress.total and progress.step > 0 and done > 0:
        return Estimate(done * max(0, progress.total - progress.step) / progress.step, EstimateSource.PROGRESS)
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
    """When it became known what the running attempt of ``job`` has left; from then on, it works that off.

    None if it has not started.
    """
    live = job.live
    if live is None or live.started is None:
        return None
    return live.started if job.spec.work_s is not None else max(live.started, job.progress_at)


def expected_end(job: Job, history: History, speedup: Speedup) -> float | None:
    """When the running attempt of ``job`` would end its work; None if nothing tells. Does not change while it runs."""
    known_at = estimated_at(job)
    if known_at is None:
        return None
    left, live = remaining(job, known_at, history, speedup), job.attempts[-1]
    return None if left is None else known_at + left.work_s / (live.speedup or speedup)(live.allocation.share)
