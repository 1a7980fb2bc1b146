"""Turns a plan into decisions, and checks every step of the plan.

Each decision is yielded and takes effect before the next one is checked. So whatever a policy asks for, no job is
placed on GPUs that are not free, no running attempt loses its GPUs without its grace period, and no room is promised
twice.

A pass carries out at most `PLACED_AT_ONCE` placements, so that no other event waits for long. The rest follow in later
passes (`place_more`); the policy is asked again once none is left.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from ebbtide_core.events import (
    AttemptPlaced,
    ClaimDropped,
    Event,
    JobHeld,
    ReturnRequested,
    RoomClaimed,
    StopRequested,
)
from ebbtide_core.job.job import Job
from ebbtide_core.job.wait_reason import waited
from ebbtide_core.model.types import Allocation, HeldBy, JobId, NodeId, StopCause
from ebbtide_core.planning.draft import count_text, where
from ebbtide_core.reserving.live import next_reservation
from ebbtide_core.resources import checkpoint_location
from ebbtide_core.resources.eligibility import allows
from ebbtide_core.resources.placing import Trial
from ebbtide_core.resources.pools import PoolState
from ebbtide_core.snapshot import Eviction, Placement, Plan

PLACED_AT_ONCE: Final = 50
"""Placements that one pass carries out at most."""

Unplaced = deque[tuple[Job, Placement, tuple[object, ...]]]
"""Placements that are not done yet, each with what the plan assumes about the job."""


def settle_claims(pool: PoolState) -> Iterator[Event]:
    """Start the jobs whose claimed room is free now, or that fit on other freed nodes; drop the claims that are void.

    A claim is void if its room is gone, or larger than its array or quota leaves the job by now.
    """
    freed_nodes, pool.freed_nodes = pool.freed_nodes, set()
    for job in list(pool.claims.values()):
        planned = job.planned
        if planned is None or not _exists(pool, planned) or not _may_have(pool, job, planned):
            yield ClaimDropped(job.id, "the room it waited for is gone; waiting in the queue")
        elif (
            freed_nodes
            and job.waiting
            and planned.share <= job.gpus_max
            and (room := _free_room(pool, job, planned, freed_nodes)) is not None
        ):
            yield start(pool, job, room, _stays_sticky(job))
    for job in list(pool.claims.values()):  # each start may have left less to others
        if job.planned is not None and job.planned.share > job.gpus_max:
            yield ClaimDropped(job.id, f"it may have {count_text(job.gpus_max)} at most by now; waiting in the queue")


def bring_back(pool: PoolState, now: float) -> Iterator[Event]:
    """Start jobs in the memory of drained nodes again on their own GPUs, once those are free, until the deadline.

    Such a job can go on nowhere else, and policies plan nothing on a drained node. The order of their queue holds here,
    too; what a policy ranks apart from its queue (`FairShare`, `RigidShortest`) comes by arrival.
    """
    for node in pool.books.drained.values():
        if not node.kept or not node.takes_back(now):
            continue
        queued = [job for id in node.kept if (job := pool.jobs[id]).queued is not None]
        for job in sorted(queued, key=pool.queue.place):
            own = job.pinned_allocation
            if own is None or not job.off_gpu:
                continue
            free = node.fits(own.nodes[0], node.held) and node.fits(own.nodes[0], node.promised)
            if free and _may_have(pool, job, own) and not _is_apart(pool, job, own):
                yield start(pool, job, own, _stays_sticky(job))


def reconcile(pool: PoolState, plan: Plan, unplaced: Unplaced) -> Iterator[Event]:
    """Yield the decisions that carry out ``plan``; append to ``unplaced`` what is too much for one pass."""
    for id, eviction in plan.evictions.items():
        yield from _evict(pool.jobs[id], eviction)
    for id, reason in plan.holds.items():
        yield JobHeld(id, HeldBy.SYSTEM, reason)
    for number, (id, placement) in enumerate(_room_givers_first(pool, plan)):
        job = pool.jobs[id]
        if number < PLACED_AT_ONCE:
            yield from _place(pool, job, placement)
        else:
            unplaced.append((job, placement, _as_planned(job)))


def place_more(pool: PoolState, unplaced: Unplaced) -> Iterator[Event]:
    """Carry out some of the ``unplaced`` placements; leave jobs and nodes that changed since then to the next plan."""
    for _ in range(min(PLACED_AT_ONCE, len(unplaced))):
        job, placement, planned = unplaced.popleft()
        there = all(node in pool.books.usable for node in placement.allocation.node_ids)
        if there and job.pool == pool.name and _as_planned(job) == planned:
            yield from _place(pool, job, placement)


def _as_planned(job: Job) -> tuple[object, ...]:
    """Return what a plan assumes about a job."""
    return job.queued, job.planned, job.gpus_min, job.gpus_max


def stop(job: Job, cause: StopCause, reason: str, for_job: JobId | None = None, grace_s: float | None = None) -> Event:
    """Return the decision to end the job's live attempt; ``grace_s`` None means the job's own grace period."""
    live = job.live
    assert live is not None
    grace = job.spec.grace_s if grace_s is None else grace_s
    return StopRequested(job.id, live.number, cause, grace, reason, for_job)


def _evict(job: Job, eviction: Eviction) -> Iterator[Event]:
    if job.running and job.preemptible:
        yield stop(job, StopCause.PREEMPTED, eviction.reason, eviction.for_job)
    elif job.claiming:
        yield ClaimDropped(job.id, eviction.reason)


def _room_givers_first(pool: PoolState, plan: Plan) -> Iterable[tuple[JobId, Placement]]:
    """Order the placements: shrinking jobs first, then starting, then growing ones, as room appears in that order."""
    if len(plan.placements) <= 1:  # as nearly always
        return plan.placements.items()

    def gain(item: tuple[JobId, Placement]) -> int:
        planned = pool.jobs[item[0]].planned
        if planned is None:
            return 0
        return 1 if item[1].allocation.share > planned.share else -1

    return sorted(plan.placements.items(), key=gain)


def _place(pool: PoolState, job: Job, placement: Placement) -> Iterator[Event]:
    # A job with a pinned allocation cannot go anywhere else, whatever the plan says.
    wanted = job.pinned_allocation or placement.allocation
    if not (wanted == job.planned or _may_have(pool, job, wanted)):
        return
    if _is_apart(pool, job, wanted):
        return  # the plan put two jobs with anti-affinity on one GPU; the next pass sees the first one there
    if job.planned is None and job.waiting and pool.books.open(wanted):
        yield start(pool, job, wanted, placement.sticky)
        return
    if wanted == job.planned or not _fits_instead(pool, job, wanted):
        return
    if job.running and not job.resizable:
        return
    if job.running:
        live = job.attempts[-1]
        before, after = count_text(live.allocation.share), count_text(wanted.share)
        reason = placement.reason if before == after else f"{placement.reason}: {before} to {after}"
        yield stop(job, StopCause.RESIZED, reason)
        yield RoomClaimed(job.id, wanted, reason)
    elif job.claiming:
        yield RoomClaimed(job.id, wanted, placement.reason)
    elif job.waiting and pool.books.free_now(wanted):
        yield start(pool, job, wanted, placement.sticky)
    elif job.waiting and placement.claim:
        yield RoomClaimed(job.id, wanted, placement.reason, waited(job))


def start(pool: PoolState, job: Job, allocation: Allocation, sticky: bool = False) -> Event:
    """Return the decision to start the job on ``allocation``, which is free."""
    reason, reserved_s = f"starting on {where(allocation)}", None
    if (
        job.saved.root_id
        and (source := checkpoint_location.copy_source(job, allocation.node_ids[0], pool.books.everywhere)) is not None
    ):
        reason += f"; its checkpoint is copied from node {source} first"
    if job.spec.time_auto:
        reserved_s, known = next_reservation(pool.history.run_times(job), job.times.ran_s)
        reason += f"; reserved until it has run {reserved_s:g} s ({known})"
    if job.pinned_allocation is not None:
        reason = reason.replace("starting on", "coming back to", 1)
        return ReturnRequested(job.id, len(job.attempts), reason, sticky, reserved_s, waited(job))
    return AttemptPlaced(job.id, len(job.attempts) + 1, allocation, reason, sticky, reserved_s, waited(job))


def _fits_instead(pool: PoolState, job: Job, wanted: Allocation) -> bool:
    """Return whether no other job is promised any of ``wanted``."""
    usable = pool.books.usable
    own = {piece.node: piece for piece in job.planned.nodes} if job.planned is not None else {}
    return all(
        (node := usable.get(piece.node)) is not None and node.fits(piece, node.promised, own.get(piece.node))
        for piece in wanted.nodes
    )


def _may_have(pool: PoolState, job: Job, allocation: Allocation) -> bool:
    """Return whether ``job`` may use ``allocation``, and no booking of another user begins before it could leave."""
    booked = pool.books.booked
    return allows(job, pool.books, allocation) and (booked is None or booked.forbid(job, allocation) is None)


def _is_apart(pool: PoolState, job: Job, allocation: Allocation) -> bool:
    """Return whether ``job`` has anti-affinity to a job with room promised on a GPU of ``allocation``."""
    return pool.books.anti_affinity is not None and pool.anti_affinity.forbid(job, allocation, pool.books.nodes)


def _stays_sticky(job: Job) -> bool:
    """Return whether the last attempt was sticky and left only for a drill."""
    last = job.attempt
    return last is not None and last.sticky and last.stop is not None and last.stop.cause is StopCause.DRILLED


def _exists(pool: PoolState, planned: Allocation) -> bool:
    """Return whether the nodes and GPUs of claimed room can still be used."""
    for piece in planned.nodes:
        node = pool.books.nodes.get(piece.node)
        if node is None or node.lost or node.drain is not None or not all(node.offers(gpu) for gpu in piece.gpus):
            return False
    return True


def _free_room(pool: PoolState, job: Job, planned: Allocation, freed_nodes: set[NodeId]) -> Allocation | None:
    """Return the claimed room if it is free, else as many GPUs on ``freed_nodes`` if they are free, else None."""
    books = pool.books
    if books.free_now(planned):
        return planned
    trial = Trial(books)
    if not freed_nodes.isdisjoint(planned.node_ids):
        trial.give(planned)
    room = trial.find(job, planned.share, None if job.spec.nodes > 1 else sorted(freed_nodes), free_now=True)
    return room if room is not None and books.free_now(room) else None
