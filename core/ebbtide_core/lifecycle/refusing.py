"""Refuses users' requests about jobs that no request, or only a cancel, can be about."""

from collections.abc import Callable

from ebbtide_core import events as e
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle import unreadable_jobs
from ebbtide_core.lifecycle.forgetting import unknown_job
from ebbtide_core.model.refusals import Refusal, RefusalKind
from ebbtide_core.model.types import JobState
from ebbtide_core.rule import J
from ebbtide_core.state import ClusterState


def of_unfinished(
    refuse: Callable[[ClusterState, Job, J], Refusal | None],
) -> Callable[[ClusterState, J], Refusal | None]:
    """Wrap ``refuse`` so that it is called only for unfinished jobs; requests about all other jobs are refused.

    A job that is being ended, or that was set aside, can only be cancelled.
    """

    def refuse_request(state: ClusterState, event: J) -> Refusal | None:
        job = state.jobs.get(event.job)
        if job is None:
            return Refusal(RefusalKind.UNKNOWN, unknown_job(state, event.job))
        if job.state.finished:
            return Refusal(RefusalKind.CONFLICT, f"job {job.id} is {job.state.value} already")
        if isinstance(event, e.CancelRequested):
            return refuse(state, job, event)
        if job.state is JobState.STOPPING:
            return Refusal(RefusalKind.CONFLICT, f"job {job.id} is being ended: {job.reason}")
        return unreadable_jobs.refusal(state, job.id) or refuse(state, job, event)

    return refuse_request


def nothing(state: ClusterState, job: Job, event: e.JobEvent) -> Refusal | None:
    """Refuse nothing: any unfinished job may be asked."""
    return None


def stop_of_live(state: ClusterState, job: Job, event: e.JobEvent) -> Refusal | None:
    """Refuse to make a live job step aside that was submitted with ``--suspend none``."""
    if job.live is None or job.preemptible:
        return None
    return Refusal(RefusalKind.CONFLICT, f"job {job.id} was submitted with --suspend none: cancel it instead")
