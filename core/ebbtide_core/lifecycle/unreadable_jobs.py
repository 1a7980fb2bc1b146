"""Jobs of which a part of the story cannot be read any more: they are set aside, and all others go on.

What is not known of such a job may be that it runs. So nobody starts it again: it is held by the system, and can only
be cancelled.
"""

from ebbtide_core.job.arrays import Array
from ebbtide_core.model.refusals import Refusal, RefusalKind
from ebbtide_core.model.types import HeldBy, JobId
from ebbtide_core.state import ClusterState


def set_aside(state: ClusterState, id: JobId, reason: str, now: float) -> None:
    """Hold the job of that id, which was just submitted, for ``reason``."""
    job = state.jobs[id]
    job.held_by, job.reason = HeldBy.SYSTEM, reason
    state.set_aside[id] = reason
    state.refresh(job, now)


def count_unread(state: ClusterState, id: JobId, reason: str) -> None:
    """There was a job of that id, and not even its submission can be read: its id is not given to another one.

    Those that are to wait for it are held, because nobody knows what became of it.
    """
    state.submissions += 1
    state.set_aside[id] = reason
    array, dot, _ = id.partition(".")
    if dot:
        state.gates.tasks += 1
        state.gates.arrays.setdefault(JobId(array), Array(JobId(array), ""))


def hold_dependents(state: ClusterState, now: float) -> None:
    """Hold those that would be cancelled because of a job that was set aside."""
    for id in list(state.gates.doomed):
        job = state.jobs[id]
        lost = [dependency.job for dependency in job.spec.after if dependency.job in state.set_aside]
        if lost:
            del state.gates.doomed[id]
            job.held_by, job.reason = HeldBy.SYSTEM, f"it was to wait for job {lost[0]}: {state.set_aside[lost[0]]}"
            state.refresh(job, now)


def refusal(state: ClusterState, id: JobId) -> Refusal | None:
    """Why nothing but a cancel can be asked of a job that was set aside."""
    if id not in state.set_aside:
        return None
    words = f"job {id} was set aside ({state.set_aside[id]}): cancel it, and submit it again"
    return Refusal(RefusalKind.CONFLICT, words)
