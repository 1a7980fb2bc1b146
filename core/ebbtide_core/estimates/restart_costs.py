"""Measures what it costs a job to step aside and come back, from the job's own suspensions.

Policies use this instead of what the job declared. The newest measurement counts for half, the one before it for a
quarter, and so on. A measurement never shortens the grace period that the job was promised.
"""

from collections.abc import Iterable
from typing import Final

from ebbtide_core.events import WorkResumed
from ebbtide_core.job.job import Attempt, Job, StopOrder, Suspension
from ebbtide_core.model.types import Checkpointed, ExitFacts

REMEMBERED: Final = 8
"""The last suspensions that count; older ones would weigh next to nothing."""
RUNS_PER_RESTART: Final = 10
"""An attempt should run at least this many times as long as a restart costs."""
NEWEST: Final = 0.5
"""The weight of the newest measurement."""
ROUNDING_S: Final = 1e-6
"""Seconds. Differences of Unix times are off by less than this."""


def note_save(job: Job, attempt: Attempt, exit: ExitFacts) -> None:
    """Note how long the newest suspension of ``job`` took, once its attempt has ended.

    An attempt that did not save, or never ran, says nothing about how long saving takes.
    """
    if exit.checkpointed is Checkpointed.YES or exit.acknowledged:
        job.suspending.proved = True
    if attempt.started is None or attempt.stop is None or exit.lost or exit.checkpointed is Checkpointed.NO:
        return
    note_duration(job, attempt.stop)


def note_duration(job: Job, order: StopOrder) -> None:
    """Note how long the newest suspension took, in seconds, at most the job's grace period.

    A suspension that used up a grace period shorter than the job's own says nothing.
    """
    suspension = job.suspensions[-1]
    assert suspension.exited is not None
    took_s = suspension.exited - suspension.requested
    if took_s + ROUNDING_S >= order.grace_s:
        if order.grace_s < job.spec.grace_s:
            return
        took_s = job.spec.grace_s
    suspension.save_s = took_s
    job.suspending.save_s = _smoothed(record.save_s for record in job.suspensions[-REMEMBERED:])


def note_return(job: Job, now: float) -> None:
    """Note the restart time of the newest suspension: the job runs again, or has made its first step after that."""
    suspension = job.suspensions[-1]
    assert suspension.placed is not None
    suspension.restart_s = now - suspension.placed
    job.suspending.restart_cost_s = _smoothed(_cost(record) for record in job.suspensions[-REMEMBERED:])


def resumed(job: Job, attempt: Attempt, placed: float, now: float) -> None:
    """Note that the newest attempt of ``job``, placed at Unix time ``placed``, runs after a suspension."""
    suspension = job.suspensions[-1]
    suspension.resumed, suspension.gpus_after = now, attempt.allocation.gpu_ids
    suspension.resumed_by = attempt.number
    suspension.placed = placed
    note_return(job, now)


def work_resumed(state: object, job: Job, event: WorkResumed, now: float) -> None:
    """Note that the job works again after its newest suspension."""
    suspension = job.suspensions[-1]
    suspension.working, suspension.working_step = now, event.step
    note_return(job, now)
    if suspension.left_step:  # the step that it goes on from shows more than its save
        job.suspending.proved = event.step >= suspension.left_step


def _cost(suspension: Suspension) -> float | None:
    if suspension.restart_s is None:
        return None
    return (suspension.checkpoint_s or suspension.save_s or 0.0) + suspension.restart_s


def _smoothed(values: Iterable[float | None]) -> float | None:
    mean = None
    for value in values:
        if value is not None:
            mean = value if mean is None else mean + NEWEST * (value - mean)
    return mean
