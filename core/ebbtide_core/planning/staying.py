"""The rules, shared by policies, by which a running job is not preempted for a waiting one, with their reasons."""

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import Final

from ebbtide_core.estimates.restart_costs import RUNS_PER_RESTART
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobId


@dataclass(frozen=True, slots=True)
class Stay:
    """Why a job is not preempted, and ``until`` when (Unix seconds), if that is known."""

    reason: str
    until: float | None = None


NOBODY_STEPS_ASIDE: Final = Stay("this policy suspends no job")
NOT_PREEMPTIBLE: Final = Stay("not preemptible")
STICKY: Final = Stay("it has a sticky slot")
NOT_FOR_CPUS: Final = Stay("it has GPUs, which a job without GPUs does not preempt")


def spared_until(job: Job, min_run_s: float) -> float | None:
    """Return until when (Unix seconds) ``job``, resumed lately, is not preempted; None if it is not spared.

    A job is spared for ``min_run_s``, or ten times its restart cost if that is longer. No job is if ``min_run_s`` is 0.
    """
    live = job.live
    if not min_run_s or not job.suspending.preemptions or live is None or live.started is None or live.stop is not None:
        return None
    return live.started + max(min_run_s, RUNS_PER_RESTART * (job.suspending.restart_cost_s or 0.0))


class LatelyResumed:
    """The jobs that are spared for a while because they resumed, by the Unix time until when (see `spared_until`)."""

    def __init__(self, min_run_s: float) -> None:
        self._min_run_s = min_run_s
        self._until: dict[JobId, float] = {}
        self._order: list[tuple[float, int, Job]] = []

    def update(self, job: Job) -> None:
        """Add, update or remove ``job`` according to its state."""
        if not job.suspending.preemptions:
            return
        until, known = spared_until(job, self._min_run_s), self._until.get(job.id)
        if until == known:
            return
        if known is not None:
            del self._order[bisect_left(self._order, (known, job.sequence))]
            del self._until[job.id]
        if until is not None:
            insort(self._order, (until, job.sequence, job))
            self._until[job.id] = until

    def at(self, now: float) -> list[Job]:
        """Return the jobs that are spared at Unix time ``now``, in no particular order."""
        return [job for _, _, job in self._order[bisect_right(self._order, (now, math.inf)) :]]


def stays_by_itself(job: Job, min_run_s: float, now: float) -> Stay | None:
    """Return why ``job`` is not preempted, whichever job waits; None if it may be."""
    if not job.preemptible:
        return NOT_PREEMPTIBLE
    until = spared_until(job, min_run_s)
    return Stay("resumed lately, min_run_s", until) if until is not None and until > now else None


def stays_by_urgency(job: Job, waiting: Job, min_run_s: float, now: float) -> Stay | None:
    """Return why ``job`` is not preempted where more urgent jobs preempt less urgent ones without a sticky slot.

    A lower priority number is more urgent. None means that ``waiting`` may preempt ``job``.
    """
    if job.priority <= waiting.priority:
        return Stay(f"of priority {job.priority}, which is not less urgent than {waiting.priority}")
    if job.running and job.attempts[-1].sticky:
        return STICKY
    return stays_by_itself(job, min_run_s, now)
