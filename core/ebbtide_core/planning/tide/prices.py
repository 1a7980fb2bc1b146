"""Prices the delay of a job, and says what it costs a job to step aside."""

from typing import Final

from ebbtide_core.estimates.outlook import UNKNOWN_S, Outlook, OutlookSource
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobClass

TRIAL_WEIGHT: Final = 6.0
"""How much more a second counts for a trial-and-error job, until it has run longer than such jobs do."""
KNOWN: Final = frozenset({OutlookSource.DECLARED, OutlookSource.PROGRESS, OutlookSource.TIME_LIMIT})
"""The sources that know how long the job itself takes, or takes at most."""
UNPROVED: Final = 0.25
"""How likely a job is assumed to lose its work by stepping aside, before it proved that it can suspend."""
RESTART_S: Final = 30.0
"""The assumed time in seconds in which a job comes back, before that was measured."""


def price(job: Job, outlook: Outlook) -> float:
    """Return what a second of delay costs: it counts relative to the expected length, times the job's weight."""
    return weight_of(job, outlook) / outlook.length_s


def weight_of(job: Job, outlook: Outlook) -> float:
    """Return the job's weight, `TRIAL_WEIGHT` times that for a trial-and-error job."""
    return job.weight * TRIAL_WEIGHT if _is_trial(job, outlook) else job.weight


def may_ask_equals(job: Job, outlook: Outlook) -> bool:
    """Return whether jobs of its own priority may be preempted for ``job``.

    They are for a trial-and-error job, and for one that is known to be done soon. What earlier runs suggest is too
    uncertain: flow times were longer, on FitGpp's workload and on bags, where others stepped aside for that.
    """
    return outlook.source in KNOWN or _is_trial(job, outlook)


def _is_trial(job: Job, outlook: Outlook) -> bool:
    """Return whether ``job`` is a trial-and-error job that has not run longer than such jobs do."""
    if job.spec.job_class is not JobClass.TRIAL_AND_ERROR:
        return False
    unlike_its_class = outlook.source in (OutlookSource.ALL, OutlookSource.AGE)
    return not unlike_its_class or outlook.done_s < UNKNOWN_S[JobClass.TRIAL_AND_ERROR]


def save_s(job: Job) -> float:
    """Return how long ``job`` takes to step aside: as measured, or else its grace period; 0 if it does not run."""
    if not job.running:
        return 0.0
    return job.spec.grace_s if job.suspending.save_s is None else job.suspending.save_s


def cost_s(job: Job) -> float:
    """Return what it costs ``job`` to step aside and to come back: as measured, or else as assumed."""
    known = job.suspending.restart_cost_s
    return known if known is not None else (save_s(job) + RESTART_S if job.running else 0.0)


def at_risk_s(job: Job, outlook: Outlook) -> float:
    """Return the seconds of work that ``job`` is expected to lose by stepping aside: none once it proved that it can.

    A job that saved nothing when it was last asked to step aside loses all again.
    """
    if job.suspending.proved:
        return 0.0
    return outlook.done_s * (1.0 if job.suspending.fruitless_in_row else UNPROVED)


def unsaved_s(job: Job, outlook: Outlook) -> float:
    """Return the seconds of work that ``job`` may lose by stepping aside: none once it proved that it can or saved."""
    return 0.0 if job.suspending.proved or job.saved.checkpoint is not None else outlook.done_s
