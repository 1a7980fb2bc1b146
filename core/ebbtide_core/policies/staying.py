"""Why who runs is not asked to step aside for who waits: rules that policies share, and how they are told."""

from dataclasses import dataclass
from typing import Final

from ebbtide_core.job.job import Job

RUNS_PER_RESTART: Final = 10
"""An attempt should run this many times longer than a restart costs."""


@dataclass(frozen=True, slots=True)
class Stay:
    """Why a job is not asked to step aside; ``until``, in Unix seconds, if that is known to end."""

    reason: str
    until: float | None = None


NOBODY_STEPS_ASIDE: Final = Stay("this policy asks nobody to step aside")
NOT_PREEMPTIBLE: Final = Stay("not preemptible")
STICKY: Final = Stay("it has a sticky slot")
NOT_FOR_CPUS: Final = Stay("it has GPUs, which a job without GPUs does not preempt")


def spared_until(job: Job, min_run_s: float) -> float | None:
    """Until when ``job``, resumed lately, is not preempted again; None if nothing spares it.

    That is for ``min_run_s``, or ten times what its restart cost if that is longer; never if ``min_run_s`` is 0.
    """
    live = job.live
    if not min_run_s or not job.preemptions or live is None or live.started is None or live.stop is not None:
        return None
    return live.started + max(min_run_s, RUNS_PER_RESTART * (job.restart_cost_s or 0.0))


def stays_by_itself(job: Job, min_run_s: float, now: float) -> Stay | None:
    """Why ``job`` is preempted by nobody, whoever waits; None if it may be."""
    if not job.preemptible:
        return NOT_PREEMPTIBLE
    until = spared_until(job, min_run_s)
    return Stay("resumed lately, min_run_s", until) if until is not None and until > now else None


def stays_by_urgency(job: Job, waiting: Job, min_run_s: float, now: float) -> Stay | None:
    """The same where more urgent jobs, with a lower number, preempt less urgent ones that have no sticky slot."""
    if job.priority <= waiting.priority:
        return Stay(f"of priority {job.priority}, which is not less urgent than {waiting.priority}")
    if job.running and job.attempts[-1].sticky:
        return STICKY
    return stays_by_itself(job, min_run_s, now)
