"""Moves attempts off their GPU and back: the driver swaps their GPU memory to host memory, and the attempt lives on.

Such an attempt has two parts in the books. It holds its GPU like any other attempt, and gives it up when the job steps
aside. It keeps its CPUs and its host memory for as long as it lives; while it is off its GPU, its GPU memory counts as
host memory, too. So that GPU is the only one on which it can go on.
"""

from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.commands import Command, Resume
from ebbtide_core.estimates import restart_costs
from ebbtide_core.events.words import until_then
from ebbtide_core.job.facets import Swap
from ebbtide_core.job.job import Attempt, Job, StopOrder, Suspension
from ebbtide_core.measuring import gpu_memory
from ebbtide_core.model.types import Allocation, NodeAllocation, StopCause
from ebbtide_core.nodes import launch_backoff
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState


def split(allocation: Allocation) -> tuple[Allocation, NodeAllocation]:
    """Split an allocation into what a swapped attempt gives up when it steps aside, and what it keeps until it ends."""
    [piece] = allocation.nodes
    gives_up = Allocation((NodeAllocation(piece.node, piece.gpus),))
    return gives_up, NodeAllocation(piece.node, (), piece.cpus, piece.mem_bytes)


def _may_be_swapped(state: ClusterState, event: e.AttemptSwapped) -> bool:
    attempt = state.newest(event.job, event.attempt)
    if attempt is None or attempt.end is not None or attempt.swap is None:
        return False
    return event.swaps > attempt.swaps


def _swapped(state: ClusterState, job: Job, event: e.AttemptSwapped, now: float) -> None:
    attempt = job.attempts[-1]
    swap = _swap(attempt)
    came_back = swap.returning_since is not None
    if attempt.started is not None:
        until = attempt.stop.requested if attempt.stop is not None else now
        saved, speed = max(attempt.started, attempt.saved_at or 0.0), state.speed(attempt)
        job.times = job.times.after_run(max(0.0, now - attempt.started), max(0.0, until - attempt.started) * speed)
        swap.unsaved_work_s += max(0.0, until - saved) * speed
    if attempt.stop is None:
        state.unplan(job)
        attempt.stop = StopOrder(StopCause.PREEMPTED, job.spec.grace_s, now, event.note, None)
    pool = state.pools[job.pool]
    pool.books.free(job.id, attempt.allocation, leaves=False)
    pool.freed_nodes.update(attempt.allocation.node_ids)
    if attempt.overran:
        gpu_memory.widen(state, attempt)
    if came_back:
        _put_off(job, now)
    else:
        _keep(state, job, swap, event.mem_bytes)
    attempt.started, attempt.off_gpu, swap.returning_since = None, True, None
    swap.out_since, swap.count, swap.out_bytes = now, event.swaps, event.mem_bytes
    attempt.idle = None
    job.next = job.next.resuming()
    where = f"its memory is in the host memory of node {attempt.allocation.node_ids[0]}"
    job.reason = f"could not come back to its GPU: {event.note}" if came_back else f"swapped out; {where}"
    _note(job, event, came_back, now)


def _put_off(job: Job, now: float) -> None:
    """Delay the next try to come back, longer each time, because the GPU has no room for the attempt."""
    job.retries = replace(job.retries, requeues_in_row=job.retries.requeues_in_row + 1)
    pause_s = launch_backoff.pause_s(job.retries.requeues_in_row)
    job.next = replace(job.next, at_head=True, not_before=now + pause_s)


def _note(job: Job, event: e.AttemptSwapped, came_back: bool, now: float) -> None:
    if not job.suspensions:
        return
    suspension = job.suspensions[-1]
    if came_back:
        add_note(suspension, f"could not come back: {event.note}")
        return
    suspension.exited = suspension.gpu_free = now
    order = job.attempts[-1].stop
    assert order is not None
    restart_costs.note_duration(job, order)
    add_note(suspension, f"{event.mem_bytes / 2**30:.1f} GiB moved to host memory in {event.seconds:.1f} s")


def add_note(suspension: Suspension, note: str) -> None:
    """Append ``note`` to the notes of the suspension, unless it is there already."""
    if note not in suspension.note:
        suspension.note = f"{suspension.note}; {note}" if suspension.note else note


def _return(state: ClusterState, job: Job, event: e.ReturnRequested, now: float) -> None:
    attempt = job.attempts[-1]
    attempt.stop, attempt.off_gpu, _swap(attempt).returning_since = None, False, now
    attempt.reserved_s, attempt.sticky = event.reserved_s, event.sticky
    job.reason = event.reason
    state.place(job, attempt.allocation)


def _resume(state: ClusterState, event: e.ReturnRequested) -> tuple[Command]:
    attempt = state.jobs[event.job].attempts[-1]
    return (Resume(attempt.allocation.node_ids, event.job, event.attempt, attempt.swaps),)


def is_back(state: ClusterState, job: Job, swap: Swap) -> None:
    """Note that the memory of the job's attempt is on the GPU again."""
    _keep(state, job, swap, -swap.out_bytes)
    swap.out_since, swap.returning_since, swap.out_bytes = None, None, 0
    job.suspending.proved = True
    job.retries = replace(job.retries, requeues_in_row=0)


def free_kept(state: ClusterState, job: Job, swap: Swap) -> None:
    """Free what the job's attempt kept until its end."""
    assert swap.kept is not None
    pool = state.pools[job.pool]
    pool.books.drop(job.id, swap.kept)
    pool.freed_nodes.add(swap.kept.node)
    swap.kept = None


def _keep(state: ClusterState, job: Job, swap: Swap, more_bytes: int) -> None:
    """Count ``more_bytes`` more host memory (negative: less) as kept by the job's attempt."""
    assert swap.kept is not None
    books = state.pools[job.pool].books
    books.drop(job.id, swap.kept)
    swap.kept = replace(swap.kept, mem_bytes=swap.kept.mem_bytes + more_bytes)
    books.keep(job.id, swap.kept)


def _swap(attempt: Attempt) -> Swap:
    assert attempt.swap is not None, "only a swappable attempt leaves its GPU and comes back"
    return attempt.swap


def _say_swapped(event: e.AttemptSwapped) -> str:
    if event.note:
        return f"attempt {event.attempt} could not come back to its GPU: {event.note}"
    amount = f"{event.mem_bytes / 2**30:.1f} GiB"
    return f"attempt {event.attempt} left its GPU: {amount} moved to host memory in {event.seconds:.1f} s"


RULES: Final = (
    Rule(e.AttemptSwapped, news=_may_be_swapped, apply=about_job(_swapped), say=_say_swapped),
    Rule(
        e.ReturnRequested,
        apply=about_job(_return),
        command=_resume,
        say=lambda event: f"attempt {event.attempt} is {event.reason}{until_then(event.waited)}",
    ),
)
