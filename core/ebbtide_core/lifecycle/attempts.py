"""Applies the events of an attempt from its claim to the request to stop: it is placed, launched, and starts."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.commands import Command, Launch, Stop
from ebbtide_core.estimates import restart_costs
from ebbtide_core.events import Event
from ebbtide_core.events.words import on, until_then
from ebbtide_core.job import edited_scripts, gang
from ebbtide_core.job.facets import Swap
from ebbtide_core.job.job import Attempt, Job, StopOrder, Suspension
from ebbtide_core.job.swap_causes import is_swapped_for
from ebbtide_core.lifecycle import swaps
from ebbtide_core.model.types import WHOLE, NodeId, StopCause, SuspendMode
from ebbtide_core.planning.draft import where
from ebbtide_core.resources import checkpoint_location
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState

GIVE_ROOM: Final = (e.AttemptPlaced, e.ReturnRequested, e.RoomClaimed)

# --- room ---


def _claim(state: ClusterState, job: Job, event: e.RoomClaimed, now: float) -> None:
    job.reason = event.reason
    state.promise(job, event.allocation)


def _drop_claim(state: ClusterState, job: Job, event: e.ClaimDropped, now: float) -> None:
    state.unplan(job)
    job.reason = event.reason


def unrecorded_drops(state: ClusterState, event: Event) -> Iterator[e.ClaimDropped]:
    """Yield the claims that were dropped before ``event`` of a journal without being recorded, as older versions did.

    Those are claims on GPUs that the event gives to another job. What attempts hold is left to the books to check.
    """
    if not isinstance(event, GIVE_ROOM) or (job := state.jobs.get(event.job)) is None:
        return
    claims = state.pools[job.pool].claims
    room = job.attempts[-1].allocation if isinstance(event, e.ReturnRequested) else event.allocation
    had = {gpu.gpu: gpu.share for piece in job.planned for gpu in piece.gpus} if job.planned is not None else {}
    for piece in room.nodes if claims else ():
        node = state.nodes[piece.node]
        for other in [claims[id] for id in sorted(node.planned & claims.keys())]:
            promised = node.promised
            twice = {gpu.gpu for gpu in piece.gpus if promised.share(gpu.gpu) - had.get(gpu.gpu, 0) + gpu.share > WHOLE}
            if other is not job and other.planned is not None and not twice.isdisjoint(other.planned.gpu_ids):
                yield e.ClaimDropped(other.id, "its room was given to another job; waiting in the queue")


# --- the start ---


def _place(state: ClusterState, job: Job, event: e.AttemptPlaced, now: float) -> None:
    if job.attempts and job.attempts[-1].allocation.share != event.allocation.share:
        job.suspending.resizes += 1
    allocation, kept = event.allocation, None
    if job.spec.suspend is SuspendMode.SWAP:
        allocation, kept = swaps.split(allocation)
    swap = Swap(kept) if kept is not None else None
    job.attempts.append(Attempt(event.attempt, allocation, now, event.reserved_s, event.sticky, swap=swap))
    if state.rates.curves:
        job.attempts[-1].speedup = state.curve(job)
    if len(allocation.nodes) > 1:
        gang.note_launch(job.attempts[-1])
    job.reason = event.reason
    state.place(job, allocation)
    if kept is not None:
        state.pools[job.pool].books.keep(job.id, kept)


def _launch(state: ClusterState, event: e.AttemptPlaced) -> tuple[Command]:
    """Launch the part on the first node alone, because that node chooses where the ranks meet."""
    return (launch_on(state, event.allocation.node_ids[:1], state.jobs[event.job]),)


def launch_on(state: ClusterState, nodes: tuple[NodeId, ...], job: Job) -> Launch:
    """Return the command to start the newest attempt of ``job`` on ``nodes``."""
    attempt, spec = job.attempts[-1], job.spec
    if (job.gpus_min, job.gpus_max) != (spec.gpus_min, spec.gpus_max):
        # A user has changed the range since the submit, and the node needs the range that the attempt has.
        spec = replace(spec, gpus_min=job.gpus_min, gpus_max=job.gpus_max)
    first, needed = attempt.allocation.node_ids[0], job.saved.checkpoint is not None
    meeting = ("", 0) if attempt.gang is None else (state.nodes[first].facts.address, attempt.gang.port)
    source = checkpoint_location.copy_source(job, first, state.nodes) if job.saved.root_id and first in nodes else None
    return Launch(nodes, job.id, attempt.number, spec, attempt.allocation, needed, *meeting, source, job.user)


def _say_placed(event: e.AttemptPlaced) -> str:
    # A further decision, such as a reservation, follows a semicolon in the reason.
    _, semicolon, more = event.reason.partition(";")
    placed = f"attempt {event.attempt} placed on {where(event.allocation)}{semicolon}{more}"
    return placed + until_then(event.waited)


def _may_start(state: ClusterState, event: e.AttemptStarted) -> bool:
    attempt = state.newest(event.job, event.attempt)
    if attempt is None or attempt.started is not None or attempt.end is not None:
        return False
    if attempt.off_gpu or attempt.swaps != event.swaps:
        return False
    if not event.node:
        return True
    member = None if attempt.gang is None else attempt.gang.members.get(event.node)
    return member is not None and not member.started and member.ended is None


def _start(state: ClusterState, job: Job, event: e.AttemptStarted, now: float) -> None:
    attempt = job.attempts[-1]
    placed, swap = attempt.placed, attempt.swap
    if swap is not None and swap.out_since is not None:
        placed = placed if swap.returning_since is None else swap.returning_since
        swaps.is_back(state, job, swap)
    if job.retries.launches_in_vain:
        job.retries = replace(job.retries, vain_in_row=0, launches_in_vain={})
    attempt.edited = event.edited or attempt.edited
    if event.leased:
        attempt.leased += (event.node or attempt.allocation.node_ids[0],)
    job.saved = job.saved.on_node(state.nodes[attempt.allocation.nodes[0].node].facts.checkpoint_root_id)
    if not event.node:  # the event is about the attempt as a whole
        attempt.pid, attempt.resumed_step, attempt.sharing = event.pid, event.resumed_step, event.sharing
        attempt.gang = None
    elif not gang.note_start(attempt, event):
        return
    attempt.started = now
    attempt.first_started = now if attempt.first_started is None else attempt.first_started
    job.reason = edited_scripts.running(attempt.edited) if attempt.stop is None else job.reason
    if job.suspensions and job.suspensions[-1].resumed is None and job.suspensions[-1].exited is not None:
        restart_costs.resumed(job, attempt, placed, now)
        state.pools[job.pool].came_back.update(job)
    look_at_limits(state, job, now)


def look_at_limits(state: ClusterState, job: Job, now: float) -> None:
    """Have passes look at ``job``, which runs, when its time limit and its reservation are over."""
    for until_s in (job.spec.time_limit_s, job.attempts[-1].reserved_s):
        if until_s is not None:
            state.set_deadline(job, now + max(0.0, until_s - job.running_s(now)))


def _launch_others(state: ClusterState, event: e.AttemptStarted) -> Iterable[Command]:
    if not event.node:  # the event is about the attempt as a whole
        return ()
    job = state.jobs[event.job]
    nodes = job.attempts[-1].allocation.node_ids
    if event.node != nodes[0] or not job.running:
        return ()
    return (launch_on(state, nodes[1:], job),)


def _say_started(event: e.AttemptStarted) -> str:
    came_from = "" if event.resumed_step is None else f", resuming from step {event.resumed_step}"
    again = " again" if event.swaps else ""
    edited = f"; {edited_scripts.changed(event.edited)}" if event.edited else ""
    return f"attempt {event.attempt} runs{again} as process {event.pid}{on(event.node)}{came_from}{edited}"


# --- the request to end ---


def _ask_to_stop(state: ClusterState, job: Job, event: e.StopRequested, now: float) -> None:
    attempt = job.attempts[event.attempt - 1]
    first = attempt.stop is None
    attempt.stop = StopOrder(event.cause, event.grace_s, now, event.reason, event.for_job)
    job.reason = event.reason
    if first:
        state.unplan(job)
        _count_stop(job, event.cause)
    elif event.cause.final and job.claiming:
        state.unplan(job)
    if first and not event.cause.final and event.cause is not StopCause.BROKEN:
        job.suspensions.append(Suspension(now, event.reason, attempt.allocation.gpu_ids))


def _count_stop(job: Job, cause: StopCause) -> None:
    match cause:
        case StopCause.PREEMPTED:
            job.suspending.preemptions += 1
            job.next = job.next.returning()
        case StopCause.RESIZED | StopCause.QUIESCED | StopCause.DRILLED | StopCause.INTERFERENCE | StopCause.DRAINED:
            job.next = job.next.returning()
        case _:
            pass


def _stop(state: ClusterState, event: e.StopRequested) -> tuple[Command]:
    job = state.jobs[event.job]
    attempt = job.attempts[event.attempt - 1]
    return (stop_on(attempt.nodes, job, attempt, event.cause, event.grace_s),)


def stop_on(nodes: tuple[NodeId, ...], job: Job, attempt: Attempt, cause: StopCause, grace_s: float) -> Stop:
    """Return the command to end the part of ``attempt`` that is on ``nodes``."""
    count = attempt.swaps if is_swapped_for(job, cause) else None
    return Stop(
        nodes, job.id, attempt.number, grace_s, count, goes_on=not cause.final and cause is not StopCause.QUIESCED
    )


RULES: Final = (
    Rule(
        e.RoomClaimed,
        apply=about_job(_claim),
        say=lambda event: f"{where(event.allocation)} kept for it: {event.reason}{until_then(event.waited)}",
    ),
    Rule(
        e.ClaimDropped,
        apply=about_job(_drop_claim),
        say=lambda event: f"gave up the room kept for it: {event.reason}",
    ),
    Rule(e.AttemptPlaced, apply=about_job(_place), command=_launch, say=_say_placed),
    Rule(e.AttemptStarted, news=_may_start, apply=about_job(_start), command=_launch_others, say=_say_started),
    Rule(
        e.StopRequested,
        apply=about_job(_ask_to_stop),
        command=_stop,
        say=lambda event: f"attempt {event.attempt} asked to stop within {event.grace_s:g} s: {event.reason}",
    ),
)
