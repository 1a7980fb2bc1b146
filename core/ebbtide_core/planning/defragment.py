"""Defragmentation: running jobs move so that scattered free GPUs become one allocation for a waiting job.

A job is moved as if it were resized: it saves, and goes on on GPUs that are free already. So no job is suspended for
longer than a restart takes. This is the last thing that a policy tries for the first job in the queue, after shrinking
and preemption. It makes no room over several nodes.

Only jobs that may be preempted, run on one node and have a measured restart cost are moved, because a job that was
never suspended has not shown that it comes back. An attempt is left alone until it has run for `STAY_S`, or ten times
the job's restart cost if that is longer. Jobs that are swapped to host memory when they are suspended cannot move. The
node is chosen where the restarts cost least: that of the cheapest job that alone makes room, or those of the cheapest
jobs that together do, without the ones not needed. The cost must be less than the time until there would be room
anyway; if that is unknown, less than `UNKNOWN_WAIT_S`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from ebbtide_core.estimates.work import EstimateSource
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, NodeId, SuspendMode
from ebbtide_core.planning.draft import Draft, count_text
from ebbtide_core.planning.elastic import may_resize
from ebbtide_core.planning.preemption import could_make_room, idle_gpus, makes_room, minimal_set, suffice
from ebbtide_core.resources.expected_releases import ExpectedRelease, Gone, first_room
from ebbtide_core.resources.placing import Trial

STAY_S: Final = 300.0
"""The least time, in seconds, that an attempt runs before it is moved."""
UNKNOWN_WAIT_S: Final = 600.0
"""The assumed remaining wait of a job, in seconds, if it is unknown."""
MOST_NODES: Final = 8
"""The most nodes from which moves are tried in one pass."""
MOST_ASKED: Final = 32
"""The most nodes whose jobs' ends are estimated, those with most idle GPUs first; more would make a pass slow."""


@dataclass(frozen=True, slots=True)
class _Moves:
    """The moves that make room on ``node``; ``cost_s`` is the sum of the restart costs, in seconds."""

    node: NodeId
    rooms: tuple[tuple[Job, Allocation], ...]
    cost_s: float


def defragment(draft: Draft, job: Job, resize_after_s: float) -> bool:
    """Move jobs out of the way of ``job``, for which there is only scattered room, and place it there.

    Return False, with nothing changed, if that cannot be done, or costs more than it gains.
    """
    trial = draft.trial
    if not draft.snapshot.came_back or not job.gpus_min or job.pinned_allocation is not None or trial.is_gang(job):
        return False
    if trial.idle * WHOLE < draft.least(job) and not trial.room.shared:
        return False
    found = [
        moves
        for node, movers in islice(_movers_by_node(draft, job, max(resize_after_s, STAY_S)), MOST_NODES)
        if (moves := _moves_from(draft, job, node, movers)) is not None
    ]
    best = min(found, key=lambda moves: moves.cost_s, default=None)
    if best is None or best.cost_s >= _wait_s(draft, job):
        return False
    _carry_out(draft, job, best)
    return True


def _carry_out(draft: Draft, job: Job, moves: _Moves) -> None:
    for mover, _ in moves.rooms:
        draft.lift(mover)
    for mover, room in moves.rooms:
        draft.place(mover, room, f"moved to make room for job {job.id}", claim=True)
    own = draft.trial.find(job, draft.least(job), [moves.node])
    assert own is not None, f"moving made no room for job {job.id}"
    names = ", ".join(mover.id for mover, _ in moves.rooms)
    draft.place(job, own, f"waiting for {count_text(draft.least(job))} that job {names} is moved from", claim=True)


def _movers_by_node(draft: Draft, job: Job, stay_s: float) -> Iterator[tuple[NodeId, list[Job]]]:
    """Yield the nodes that might have room without the jobs that can be moved, and these jobs, the cheapest first."""
    nodes, came_back = draft.snapshot.nodes, draft.snapshot.came_back
    needed, idle = draft.least(job) // WHOLE, idle_gpus(draft)
    for node in _nodes(draft, job):
        if idle.get(node, 0) + came_back.gpus.get(node, 0) < needed:
            continue  # most nodes are ruled out by counting
        here = came_back.on_node(nodes[node].planned)
        found = [(mover, room) for mover in here if (room := _movable(draft, mover, stay_s)) is not None]
        if found and could_make_room(draft, job, [room for _, room in found], node):
            yield node, sorted((mover for mover, _ in found), key=lambda mover: (_cost(mover), mover.sequence))


def _nodes(draft: Draft, job: Job) -> Iterator[NodeId]:
    """Return nodes with free pieces, most idle GPUs first; for one GPU or less, nodes with shared GPUs come first."""
    room = draft.trial.room
    emptiest = [node for count in sorted(room.idle, reverse=True) if count for node in room.idle[count]]
    pieces = (room.shared, emptiest) if draft.least(job) <= WHOLE else (emptiest, room.shared)
    return iter(dict.fromkeys(chain(*pieces)))


def _movable(draft: Draft, job: Job, stay_s: float) -> Allocation | None:
    """Return the allocation of ``job`` if it may be moved; else None."""
    room = job.planned
    if room is None or not job.running or job.spec.suspend is not SuspendMode.CHECKPOINT or not room.share:
        return None
    if job.id in draft.evictions or job.id in draft.placements or len(room.nodes) > 1 or job.held_by is not None:
        return None
    if room.node_ids[0] not in draft.snapshot.nodes or not may_resize(draft, job, stay_s):
        return None
    return room


def _moves_from(draft: Draft, job: Job, node: NodeId, movers: list[Job]) -> _Moves | None:
    for mover in movers:
        if suffice(draft, job, [mover], (node,)) and (moves := _elsewhere(draft, job, node, [mover])) is not None:
            return moves
    several = minimal_set(draft, job, movers, (node,)) if makes_room(draft, job, movers, (node,)) else []
    return _elsewhere(draft, job, node, several) if len(several) > 1 else None


def _elsewhere(draft: Draft, job: Job, node: NodeId, movers: list[Job]) -> _Moves | None:
    """Return the moves of ``movers``, the largest first, if ``job`` has room on ``node``; None if one has none."""
    trial = draft.trial
    before = [mover.planned for mover in movers if mover.planned is not None]
    for allocation in before:
        trial.give(allocation)
    taken, rooms = [], []
    if (own := trial.find(job, draft.least(job), [node])) is not None:
        trial.take(own)
        taken.append(own)
    for mover, had in sorted(zip(movers, before, strict=True), key=lambda pair: -pair[1].share):
        room = trial.find(mover, had.share, free_now=True) if own is not None else None
        if room is None:
            break
        trial.take(room)
        taken.append(room)
        rooms.append((mover, room))
    for allocation in taken:
        trial.give(allocation)
    for allocation in before:
        trial.take(allocation)
    return _Moves(node, tuple(rooms), sum(map(_cost, movers))) if len(rooms) == len(movers) else None


def _cost(job: Job) -> float:
    return job.suspending.restart_cost_s or 0.0


def _wait_s(draft: Draft, job: Job) -> float:
    """Return in how many seconds there would be room for ``job`` without moves; `UNKNOWN_WAIT_S` if unknown."""
    snapshot = draft.snapshot
    trial = Trial(snapshot.books)
    for id in (*draft.placements, *draft.evictions):
        if (planned := snapshot.job(id).planned) is not None:
            trial.give(planned)
    for placement in draft.placements.values():
        trial.take(placement.allocation)
    found = first_room(trial, job, sorted(_leaving(draft, job)))
    return UNKNOWN_WAIT_S if found is None else found[0].time - snapshot.now


def _leaving(draft: Draft, job: Job) -> list[Gone]:
    """Return the jobs that stay where they run and have an estimated end, with these ends."""
    snapshot, gone = draft.snapshot, list[Gone]()
    nodes = islice(dict.fromkeys(chain(_nodes(draft, job), snapshot.nodes)), MOST_ASKED)
    for id in {id for node in nodes for id in snapshot.nodes[node].planned}:
        other = snapshot.job(id)
        room, left = draft.allocation(other), snapshot.remaining(other)
        if room is None or id in draft.placements or not other.running or left is None:
            continue
        # For a job that has run for longer than its earlier runs, these do not predict the end.
        if left.work_s > 0 or left.source is not EstimateSource.EARLIER_RUNS:
            speedup = snapshot.speedup
            end = snapshot.now + left.work_s / speedup(room.share)
            gone.append((ExpectedRelease(end, other.sequence, False, False, other), room))
    return gone
