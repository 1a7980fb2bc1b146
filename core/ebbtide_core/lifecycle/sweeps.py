"""Which arrays are under successive halving, and which of their tasks are there, as jobs come and end."""

from ebbtide_core.job.job import Job
from ebbtide_core.model.asha import SuccessiveHalving
from ebbtide_core.state import ClusterState


def entered(state: ClusterState, job: Job) -> None:
    """There is a new job; it may be a task that is compared with the others of its array."""
    asha, task = job.spec.asha, job.task
    if asha is not None and task is not None:
        state.halvings.setdefault(task.array, SuccessiveHalving(asha)).add(job.id)


def left(state: ClusterState, job: Job) -> None:
    """An attempt of the job is over; only then can it be given up."""
    if halving_of(state, job) is not None and job.task is not None:
        state.halvings_changed.add(job.task.array)


def ended(state: ClusterState, job: Job) -> None:
    """The job is over, which may tell that nobody else comes to a rung."""
    if (sweep := halving_of(state, job)) is None or job.task is None:
        return
    sweep.end(job.id)
    state.halvings_changed.add(job.task.array)
    if sweep.over:
        del state.halvings[job.task.array]


def halving_of(state: ClusterState, job: Job) -> SuccessiveHalving | None:
    """The sweep that the job is a task of, if it is one of an array that is not over."""
    if job.spec.asha is None or job.task is None:
        return None
    sweep = state.halvings.get(job.task.array)
    return sweep if sweep is not None and job.id in sweep.tasks else None
