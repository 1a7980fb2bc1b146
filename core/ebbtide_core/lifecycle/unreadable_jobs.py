"""Sets aside jobs whose part of the journal cannot be read any more, so that all other jobs go on.

Such a job may be running without the master knowing. So it is never started again: the system holds it, and users can
only cancel it.
"""

from ebbtide_core.job.arrays import Array
from ebbtide_core.model.refusals import Refusal, RefusalKind
from ebbtide_core.model.types import HeldBy, JobId
from ebbtide_core.state import ClusterState


def hold(state: ClusterState, id: JobId, reason: str, now: float) -> None:
    """Hold the job with that id, which was just submitted, for ``reason``."""
    job = state.jobs[id]
    job.held_by, job.reason = HeldBy.SYSTEM, reason
    state.unreadable[id] = reason
    state.refresh(job, now)


def count_unread(state: ClusterState, id: JobId, reason: str) -> None:
    """Count a job of which not even the submission can be read, so that no other job gets its id.

    Jobs that depend on it will be held, because it is not known what became of it.
    """
    state.submissions += 1
    state.unreadable[id] = reason
    array, dot, _ = id.partition(".")
    if dot:
        state.gates.tasks += 1
        state.gates.arrays.setdefault(JobId(array), Array(JobId(array), ""))


def hold_dependents(state: ClusterState, now: float) -> None:
    """Hold the jobs that would be cancelled because they depend on a job that was set aside."""
    for id in list(state.gates.doomed):
        job = state.jobs[id]
        lost = [dependency.job for dependency in job.spec.after if dependency.job in state.unreadable]
        if lost:
            del state.gates.doomed[id]
            job.held_by, job.reason = HeldBy.SYSTEM, f"it was to wait for job {lost[0]}: {state.unreadable[lost[0]]}"
            state.refresh(job, now)


def refusal(state: ClusterState, id: JobId) -> Refusal | None:
    """Return a refusal if the job was set aside, because it can only be cancelled, else None."""
    if id not in state.unreadable:
        return None
    words = f"job {id} was set aside ({state.unreadable[id]}): cancel it, and submit it again"
    return Refusal(RefusalKind.CONFLICT, words)
