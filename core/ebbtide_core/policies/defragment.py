"""Room that exists only in pieces: jobs are moved elsewhere so that the one who waits has it in one.

A job is moved as one is resized: it saves, and goes on on GPUs that are free already. So nobody is suspended for longer
than a restart takes. This is the last thing that a policy tries for the first job in line, after shrinking and
preemption; room over several nodes is not made in this way.

Moved are jobs that may be preempted, on one node each, and only those of which it was measured what a restart costs
them: whoever was never suspended has not shown that it comes back. One that was moved, or started for any other reason,
is left alone for `STAY_S`, or ten times what its restart cost. Jobs that lie in host memory when they are suspended can
go nowhere else. Of all nodes, the one is chosen where the restarts cost least: of the cheapest job alone that makes
room, or of the cheapest together, less those that are not needed. And that must be less than the time until there would
be room anyway; where nobody knows when that is, `UNKNOWN_WAIT_S`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from ebbtide_core.estimates.work import EstimateSource
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, NodeId, SuspendMode
from ebbtide_core.policies.draft import Draft, count_text
from ebbtide_core.policies.elastic import may_resize
from ebbtide_core.policies.preemption import could_make_room, makes_room, minimal_set
from ebbtide_core.resources.expected_releases import ExpectedRelease, Gone, first_room
from ebbtide_core.resources.placing import Trial

STAY_S: Final = 300.0
"""An attempt runs at least so long before it is moved."""
UNKNOWN_WAIT_S: Final = 600.0
"""How long one who waits is taken to wait on if nothing tells."""
MOST_NODES: Final = 8
"""Nodes from which moves are tried in one pass."""
MOST_ASKED: Final = 32
"""Nodes whose jobs are asked when they end, those with most idle GPUs first: more would make a pass slow."""


@dataclass(frozen=True, slots=True)
class _Moves:
    """Who goes where, so that there is room on ``node``; ``cost_s`` is what their restarts cost."""

    node: NodeId
    rooms: tuple[tuple[Job, Allocation], ...]
    cost_s: float


def defragment(draft: Draft, job: Job, resize_after_s: float) -> bool:
    """Move jobs out of the way of ``job``, for which there is room in pieces only, and place it there.

    False, with nothing changed, if that cannot be done, or costs more than it gains.
    """
    trial = draft.trial
    if not draft.snapshot.came_back or not job.gpus_min or job.pinned_allocation is not None or trial.is_gang(job):
        return False
    if trial.idle * WHOLE < job.gpus_min and not trial.room.shared:
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
    own = draft.trial.find(job, job.gpus_min, [moves.node])
    assert own is not None, f"moving made no room for job {job.id}"
    names = ", ".join(mover.id for mover, _ in moves.rooms)
    draft.place(job, own, f"waiting for {count_text(job.gpus_min)} that job {names} is moved from", claim=True)


def _movers_by_node(draft: Draft, job: Job, stay_s: float) -> Iterator[tuple[NodeId, list[Job]]]:
    """The nodes where there might be room without those who can be moved, and these, the cheapest first."""
    snapshot = draft.snapshot
    for node in _nodes(draft, job):
        here = [snapshot.came_back[id] for id in snapshot.nodes[node].planned if id in snapshot.came_back]
        found = [(mover, room) for mover in here if (room := _movable(draft, mover, stay_s)) is not None]
        if found and could_make_room(draft, job, [room for _, room in found], node):
            yield node, sorted((mover for mover, _ in found), key=lambda mover: (_cost(mover), mover.sequence))


def _nodes(draft: Draft, job: Job) -> Iterator[NodeId]:
    """Where there are pieces: those with most idle GPUs first, but for one GPU or less, those where GPUs are shared."""
    room = draft.trial.room
    emptiest = [node for count in sorted(room.idle, reverse=True) if count for node in room.idle[count]]
    pieces = (room.shared, emptiest) if job.gpus_min <= WHOLE else (emptiest, room.shared)
    return iter(dict.fromkeys(chain(*pieces)))


def _movable(draft: Draft, job: Job, stay_s: float) -> Allocation | None:
    """What ``job`` has, if it may be moved from there."""
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
        if makes_room(draft, job, [mover], (node,)) and (moves := _elsewhere(draft, job, node, [mover])) is not None:
            return moves
    several = minimal_set(draft, job, movers, (node,)) if makes_room(draft, job, movers, (node,)) else []
    return _elsewhere(draft, job, node, several) if len(several) > 1 else None


def _elsewhere(draft: Draft, job: Job, node: NodeId, movers: list[Job]) -> _Moves | None:
    """Where ``movers`` would go on if ``job`` had its room on ``node``, the largest first; None if one could not."""
    trial = draft.trial
    before = [mover.planned for mover in movers if mover.planned is not None]
    for allocation in before:
        trial.give(allocation)
    taken, rooms = [], []
    if (own := trial.find(job, job.gpus_min, [node])) is not None:
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
    return job.restart_cost_s or 0.0


def _wait_s(draft: Draft, job: Job) -> float:
    """In how many seconds there would be room for ``job`` without any move; `UNKNOWN_WAIT_S` if nobody knows."""
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
    """Those who run on where they are, and when they end as far as one can tell."""
    snapshot, gone = draft.snapshot, list[Gone]()
    nodes = islice(dict.fromkeys(chain(_nodes(draft, job), snapshot.nodes)), MOST_ASKED)
    for id in {id for node in nodes for id in snapshot.nodes[node].planned}:
        other = snapshot.job(id)
        room, left = draft.allocation(other), snapshot.remaining(other)
        if room is None or id in draft.placements or not other.running or left is None:
            continue
        # That one runs for longer than its earlier runs tells nothing of when it ends.
        if left.work_s > 0 or left.source is not EstimateSource.EARLIER_RUNS:
            end = snapshot.now + left.work_s / snapshot.speedup(room.share)
            gone.append((ExpectedRelease(end, other.sequence, False, False, other), room))
    return gone
