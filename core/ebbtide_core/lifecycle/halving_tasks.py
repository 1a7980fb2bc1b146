"""Tracks which arrays are under successive halving, and their tasks, as jobs come and end."""

from ebbtide_core.job.job import Job
from ebbtide_core.model.asha import SuccessiveHalving
from ebbtide_core.model.types import JobState
from ebbtide_core.state import ClusterState


def add(state: ClusterState, job: Job) -> None:
    """Add a new job to the successive halving of its array, if the array has one."""
    asha, task = job.spec.asha, job.lineage.task
    if asha is not None and task is not None:
        state.halvings.setdefault(task.array, SuccessiveHalving(asha)).add(job.id)


def attempt_ended(state: ClusterState, job: Job) -> None:
    """Have the array reviewed after an attempt of its task ended, because only then can the task be stopped."""
    if halving_of(state, job) is not None and job.lineage.task is not None:
        state.halvings_changed.add(job.lineage.task.array)


def task_ended(state: ClusterState, job: Job) -> None:
    """Note that the task is over, and have its array reviewed: perhaps no other task can reach a rung any more."""
    if (halving := halving_of(state, job)) is None or job.lineage.task is None:
        return
    halving.end(job.id, stopped_early=job.end is not None and job.end.state is JobState.COMPLETED)
    state.halvings_changed.add(job.lineage.task.array)
    if halving.over:
        del state.halvings[job.lineage.task.array]


def halving_of(state: ClusterState, job: Job) -> SuccessiveHalving | None:
    """Return the successive halving that the job is a task of; None if it is in none, or in one that is over."""
    if job.spec.asha is None or job.lineage.task is None:
        return None
    halving = state.halvings.get(job.lineage.task.array)
    return halving if halving is not None and job.id in halving.tasks else None
