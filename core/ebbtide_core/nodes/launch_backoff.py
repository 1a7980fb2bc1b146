"""Delays a job whose launches fail, longer each time, and then leaves out the node.

The first failed launch is repeated at once, the next ones after 1 s, 2 s, 4 s, up to a minute, on whichever node. If a
job's launches failed on a node `limits.MAX_LAUNCHES_IN_VAIN` times in a row, the job leaves out that node until the
node registers again or `limits.LEFT_OUT_S` is over; one more failure there leaves it out again. So no failure is
repeated without an end.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.job.job import Job
from ebbtide_core.model import limits
from ebbtide_core.model.types import NodeId, RefusalCause
from ebbtide_core.state import ClusterState

MOST_DOUBLINGS: Final = 30
"""A pause is long past its limit by then; 2.0 to the power of 1,024 would be an error."""
COUNTED = (RefusalCause.NODE, RefusalCause.NOT_MOVED)
"""Causes that count. After any other cause, the job does not go to that node again anyway, or is held."""


def pause_s(times: int) -> float:
    """Return for how many seconds a job waits after so many attempts, or launches, in vain in a row."""
    doublings = min(max(0, times - 1), MOST_DOUBLINGS)
    return min(limits.REQUEUE_BACKOFF_S * 2.0**doublings, limits.MAX_REQUEUE_BACKOFF_S)


def note(job: Job, refusal: e.AttemptRefused, now: float) -> None:
    """Fold: count a failed launch, and set ``not_before``, the earliest time of the next one, if it has to wait."""
    node = _where(job, refusal)
    times = job.retries.vain_in_row + 1
    job.retries = job.retries.with_launches(node, job.retries.launches_in_vain.get(node, 0) + 1, in_row=times)
    if times > 1:
        wait_s = pause_s(times - 1)
        job.next = replace(job.next, not_before=max(job.next.not_before, now + wait_s))
        job.reason = f"{refusal.reason} ({times} launches failed in a row: the next after {wait_s:g} s)"


def leave_out(job: Job, refusal: e.AttemptRefused) -> Iterator[e.Event]:
    """Decide: exclude a node on which too many launches of the job failed."""
    node = _where(job, refusal)
    if refusal.cause in COUNTED and job.retries.launches_in_vain.get(node, 0) >= limits.MAX_LAUNCHES_IN_VAIN:
        often = limits.MAX_LAUNCHES_IN_VAIN
        why = f"left out for {limits.LEFT_OUT_S:g} s, after {often} launches in a row that failed: {refusal.reason}"
        yield e.NodeExcluded(job.id, node, why)


def left_out(state: ClusterState, job: Job, node: NodeId, now: float) -> None:
    """Fold: note until when the job leaves out the node, if it does so because of failed launches."""
    if job.retries.launches_in_vain.get(node, 0) >= limits.MAX_LAUNCHES_IN_VAIN:
        job.eligibility = job.eligibility.left_out(node, now + limits.LEFT_OUT_S)
        state.left_out.add(job.id)
        state.look_at(job, now + limits.LEFT_OUT_S)


def registered(state: ClusterState, node: NodeId, now: float) -> None:
    """Fold: let jobs go to the node again, because it may be a different machine now."""
    for id in sorted(state.left_out):
        job = state.jobs[id]
        if node in job.eligibility.left_out_until:
            state.admit(job, node)
            state.refresh(job, now)


def _where(job: Job, refusal: e.AttemptRefused) -> NodeId:
    return refusal.node or job.attempts[refusal.attempt - 1].allocation.node_ids[0]
