"""Chooses the GPUs of a booking, makes jobs leave them in time, and replaces GPUs that are lost."""

from bisect import bisect_right
from collections.abc import Hashable, Iterator
from itertools import islice
from typing import Final

from ebbtide_core.admission.queues import QueueKey
from ebbtide_core.events.base import Event
from ebbtide_core.events.bookings import BookedGpu, BookingCancelled, BookingMade, BookingMoved
from ebbtide_core.events.words import count_gpus
from ebbtide_core.job.job import Job
from ebbtide_core.model.constraints import is_of_type
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import GpuId, NodeId, StopCause
from ebbtide_core.planning.draft import need_text
from ebbtide_core.reconcile import start, stop
from ebbtide_core.resources.bookings import FREEING_S, lead_s, reserved_for
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.jobs_in_the_way import JobsInTheWay
from ebbtide_core.resources.placing import Trial
from ebbtide_core.resources.pools import PoolState
from ebbtide_core.resources.waiting_index import WaitingIndex
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState

MOVED_AT_ONCE: Final = 5
"""Bookings that are moved in one pass; each one looks at all nodes."""
BLOCKED_AT_ONCE: Final = 2000
"""Jobs that are taken out of the queue or put back in one pass."""
ASKED_AT_ONCE: Final = 1000
"""Groups of jobs that are tried in one pass, to see whether bookings keep them out."""


class ImpossibleError(Exception):
    """Raised for a booking that cannot be made; the message says why. ``clash``: other bookings are the only reason."""

    def __init__(self, message: str, *, clash: bool = False) -> None:
        super().__init__(message)
        self.clash = clash


@frozen(kw_only=True)
class BookingRequest:
    """A request for ``count`` GPUs for ``user``, on ``on_node`` and of ``gpu_type`` if these are named."""

    user: str
    count: int
    since: float
    until: float
    on_node: str = ""
    gpu_type: str = ""


Taken = dict[tuple[NodeId, GpuId], str]
"""GPUs that other bookings have, with a text that names the booking."""


def choose(
    state: ClusterState, request: BookingRequest, now: float, besides: BookingMade | None = None
) -> tuple[BookedGpu, ...]:
    """Return GPUs of one pool for ``request``: on as few nodes as possible, and first those that the fewest jobs use.

    ``besides`` is the booking that they are for if it exists already: it keeps what it has and can keep. Raises
    `ImpossibleError`.
    """
    if request.on_node and request.on_node not in state.nodes:
        raise ImpossibleError(f"--node: there is no node {request.on_node!r}")
    taken = _taken(state, request, besides)
    best: ImpossibleError | None = None
    for pool in sorted(state.pools.values(), key=lambda pool: pool.name != state.settings.gpu_pool):
        try:
            return _choose_in(state, pool, request, now, taken, besides)
        except ImpossibleError as error:
            best = error if best is None or (error.clash and not best.clash) else best
    raise best or ImpossibleError("--gpus: there is no pool")


def _choose_in(
    state: ClusterState, pool: PoolState, request: BookingRequest, now: float, taken: Taken, besides: BookingMade | None
) -> tuple[BookedGpu, ...]:
    nodes = [node for node in pool.books.nodes.values() if request.on_node in ("", node.id)]
    able = {node.id: _able(state, node, request, now) for node in nodes}
    free = {id: {gpu: cost for gpu, cost in gpus.items() if (id, gpu) not in taken} for id, gpus in able.items()}
    if sum(map(len, free.values())) < request.count:
        raise _too_few(request, sum(map(len, able.values())), sum(map(len, free.values())), set(taken.values()))
    kept = frozenset(booked.gpu for booked in besides.gpus) if besides is not None else frozenset()
    free = _alike(pool, free, request.count, kept)
    order = _order(free, request.count) if besides is None else sorted(free, key=lambda id: kept.isdisjoint(free[id]))
    chosen = [BookedGpu(id, gpu) for id in order for gpu in sorted(free[id], key=free[id].__getitem__)]
    chosen.sort(key=lambda booked: booked.gpu not in kept)
    return tuple(chosen[: request.count])


Cost = tuple[bool, int, int]
"""Cost of a GPU: whether a process of no job is on it, how many jobs have to leave it, and its index."""
Free = dict[NodeId, dict[GpuId, Cost]]
"""GPUs that may be chosen, by node."""


def _alike(pool: PoolState, free: Free, count: int, kept: frozenset[GpuId]) -> Free:
    """Return the GPUs of one model if enough are ``free``, because few jobs can use several models together.

    Among several such models, the one wins with the most GPUs ``kept`` already, then one that a single node has, then
    the one that the fewest jobs have to leave.
    """
    by_model: dict[str, Free] = {}
    for id, gpus in free.items():
        for gpu, cost in gpus.items():
            by_model.setdefault(pool.books.nodes[id].gpus[gpu].model, {}).setdefault(id, {})[gpu] = cost
    enough = [found for _, found in sorted(by_model.items()) if sum(map(len, found.values())) >= count]

    def rank(found: Free) -> tuple[int, bool, int]:
        cheapest = sorted(cost for gpus in found.values() for cost in gpus.values())[:count]
        stay = sum(len(kept & gpus.keys()) for gpus in found.values())
        return -stay, max(map(len, found.values())) < count, sum(cost[1] + cost[0] for cost in cheapest)

    return min(enough, key=rank) if enough else free


def _order(free: Free, count: int) -> list[NodeId]:
    """Return the nodes with enough GPUs, fewest jobs to move first, then least left over.

    If no node has enough, return all, the largest first.
    """
    if not any(len(gpus) >= count for gpus in free.values()):
        return sorted(free, key=lambda id: (-len(free[id]), id))

    def rank(id: NodeId) -> tuple[int, int, NodeId]:
        cheapest = sorted(free[id].values())[:count]
        return sum(cost[1] + cost[0] for cost in cheapest), len(free[id]), id

    return sorted((id for id, gpus in free.items() if len(gpus) >= count), key=rank)


def _able(state: ClusterState, node: Node, request: BookingRequest, now: float) -> dict[GpuId, Cost]:
    """Return the GPUs of ``node`` that ``request`` could have if there were no other bookings, with their costs."""
    costs: dict[GpuId, Cost] = {}
    others = [job for job in state.jobs_on_gpus(node) if job.user != request.user]
    for facts in node.gpus.values() if _offers(node, request) else ():
        of_type = not request.gpu_type or is_of_type(facts.model, request.gpu_type)
        if facts.healthy and of_type and facts.parent is None:
            occupants = [job for job in others if _has(job, facts.gpu)]
            if all(_leaves_by(job, now, request.since) for job in occupants):
                costs[facts.gpu] = (facts.gpu in node.foreign, len(occupants), facts.index)
    return costs


def _offers(node: Node, request: BookingRequest) -> bool:
    """Return whether ``node`` is in service that long, and open to all jobs unless the request names it."""
    stays = node.loan is None or request.until <= node.loan.until
    return stays and not node.lost and node.drain is None and (not node.facts.taints or bool(request.on_node))


def _has(job: Job, gpu: GpuId) -> bool:
    holding = job.holding
    return holding is not None and gpu in holding.allocation.gpu_ids


def _leaves_by(job: Job, now: float, time: float) -> bool:
    """Return whether ``job`` leaves its GPUs by Unix time ``time``, can be preempted, or is leaving already."""
    if job.preemptible or not job.running:
        return True
    limit = job.spec.time_limit_s
    return limit is not None and now + max(0.0, limit - job.running_s(now)) + lead_s(job) <= time


def _taken(state: ClusterState, request: BookingRequest, besides: BookingMade | None) -> Taken:
    """Return the GPUs that other bookings have in the same window, with texts that name them."""
    others = [
        booking
        for booking in state.bookings.by_id.values()
        if (besides is None or booking.booking != besides.booking)
        and booking.since < request.until + FREEING_S
        and request.since < booking.until + FREEING_S
    ]
    texts = [(booking, reserved_for(booking)) for booking in others]
    return {(booked.node, booked.gpu): text for booking, text in texts for booked in booking.gpus}


def _too_few(request: BookingRequest, able: int, free: int, others: set[str]) -> ImpossibleError:
    what = f" of type {request.gpu_type}" if request.gpu_type else ""
    where = f" of node {request.on_node}" if request.on_node else ""
    if able >= request.count:
        return ImpossibleError(
            f"--start: only {free} GPUs{what}{where} are left then: {'; '.join(sorted(others))}", clash=True
        )
    return ImpossibleError(f"--gpus: only {able} GPUs{what}{where} are there, or can be free then")


# --- what follows ---


def review(state: ClusterState, now: float) -> Iterator[Event]:
    """Move bookings off lost GPUs, and stop the jobs that have to leave booked GPUs in time."""
    state.bookings.look(now)
    _keep_books(state)
    yield from _move_some(state)
    for entry in _in_the_way(state).due(now):
        if entry.job.running:  # a job on several nodes is in the way on each of them
            yield stop(entry.job, StopCause.PREEMPTED, reserved_for(entry.booking))


def update_blocked(state: ClusterState, now: float) -> None:
    """Take jobs out of the queue that bookings would keep out even of an empty cluster, and put the others back.

    If there are very many, some follow with the next passes.
    """
    bookings, index = state.bookings, state.waiting_index
    if not bookings:
        for job in list(islice(state.blocked_by_bookings.values(), BLOCKED_AT_ONCE)):
            del state.blocked_by_bookings[job.id]
            state.refresh(job, now)
        bookings.more_to_block = bool(state.blocked_by_bookings)
        return
    if index is None:
        index = state.waiting_index = WaitingIndex(state.unfinished.values())
    index.take_in(state.blocked_by_bookings)
    index.ask(bookings, _known(state, index), lambda: _WhyBlocked(state), ASKED_AT_ONCE)
    for job, reason in index.moves(state.blocked_by_bookings, BLOCKED_AT_ONCE):
        _block_or_unblock(state, index, job, reason, now)
    bookings.more_to_block = index.is_behind


def _known(state: ClusterState, index: WaitingIndex) -> Hashable:
    """Return what decides which jobs bookings keep out, jobs and time aside; with anti-affinity, placements count."""
    bookings = state.bookings
    return bookings.index, len(bookings.begun), _changes(state), index.rounds if state.has_anti_affinity else None


def _changes(state: ClusterState) -> tuple[int, ...]:
    """Return numbers of which one is another whenever nodes have changed."""
    return tuple([pool.books.changes for pool in state.pools.values()])


class _WhyBlocked:
    """Says why bookings alone keep out a waiting job, in words; empty if they do not.

    It holds as long as what `_known` returns. A copy of the state has one of its own, which has looked at nothing yet.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._trials: dict[str, tuple[Trial, Trial]] = {}
        """Of each pool, as if it were empty: with bookings, and without."""

    def __getstate__(self) -> dict[str, object]:
        return {"_state": self._state, "_trials": {}}

    def __call__(self, job: Job) -> str:
        empty, unbooked = self._trials.get(job.pool) or self._look_at(job.pool)
        if empty.find(job, job.gpus_min) is not None or unbooked.find(job, job.gpus_min) is None:
            return ""
        return f"waiting for {need_text(job, job.gpus_min)}: {self._state.bookings.obstacle(job)}"

    def _look_at(self, pool: str) -> tuple[Trial, Trial]:
        books = self._state.pools[pool].books
        trials = self._trials[pool] = Trial(books), Trial(books, as_if_unbooked=True)
        for trial in trials:
            trial.empty()
        return trials


def _block_or_unblock(state: ClusterState, index: WaitingIndex, job: Job, reason: str, now: float) -> None:
    """Take ``job`` out of the queue for ``reason``; put it back if that is empty."""
    is_to_be_seen = job.id in index.changed
    if reason:
        state.blocked_by_bookings[job.id], job.reason = job, reason
    else:
        del state.blocked_by_bookings[job.id]
    state.refresh(job, now)
    if not is_to_be_seen and (reason or job.queued is not None):
        index.changed.pop(job.id, None)  # nothing else about it has changed


def admit(state: ClusterState, pool: PoolState) -> Iterator[Event]:
    """Start jobs on the GPUs that their users have booked, past the queue, which is only for GPUs of all users."""
    booked, index = pool.books.booked, state.waiting_index
    if booked is None or index is None or not (owners := booked.owners()):
        return
    index.take_in(state.blocked_by_bookings)
    theirs = [job for user in owners for job in index.jobs_of(user, pool.name)]
    in_vain = set[Hashable]()  # keys of jobs for which there is no room: jobs that are alike find none either
    for job in sorted(
        (job for job in theirs if job.queued is not None and job.pinned_allocation is None), key=_queue_key
    ):
        if job.queued is None or (like := index.alike(job)) in in_vain:
            continue
        own = booked.own(job)
        room = Trial(pool.books).find(job, job.gpus_min, sorted(own), free_now=True)
        if room is not None and all(gpu.gpu in own.get(piece.node, ()) for piece in room for gpu in piece.gpus):
            yield start(pool, job, room)
        else:
            in_vain.add(like)


def _queue_key(job: Job) -> QueueKey:
    assert job.queued is not None
    return job.queued


def next_time(state: ClusterState, now: float) -> float | None:
    """Return the Unix time at which bookings make something due next; None if nothing is."""
    index = state.bookings.index
    starts, ends = index.every.starts, index.ends
    times = [row[at] for row in (starts, ends) if (at := bisect_right(row, now)) < len(row)]
    if (leave := _in_the_way(state).next_time(now)) is not None:
        times.append(leave)
    return min((time for time in times if time > now), default=None)


def _in_the_way(state: ClusterState) -> JobsInTheWay:
    """Return the jobs on GPUs that other users have booked, as they are now."""
    if state.in_the_way is None:
        state.in_the_way = JobsInTheWay()
    nodes = (state.nodes.get(id) for id in state.bookings.index.on_node)
    state.in_the_way.take_in(
        state.bookings, (job for node in nodes if node is not None for job in state.jobs_on_gpus(node))
    )
    return state.in_the_way


def _move_some(state: ClusterState) -> Iterator[Event]:
    """Move some of the bookings that have lost GPUs. The rest follow; bookings that cannot be moved are tried again."""
    bookings = state.bookings
    lost = [booking for booking in _with_lost(state) if booking.booking not in bookings.tried]
    if not lost:
        bookings.tried.clear()
        lost = _with_lost(state)
    for booking in lost[:MOVED_AT_ONCE]:
        bookings.tried.add(booking.booking)
        yield from _moved(state, booking)
    bookings.more_to_move = len(lost) > MOVED_AT_ONCE


def _with_lost(state: ClusterState) -> list[BookingMade]:
    """Return the bookings with GPUs that are lost or out of service, by the time at which they begin."""
    every = state.bookings.index.every.bookings
    return state.bookings.index.until_nodes_change(
        _changes(state), lambda: [one for one in every if not all(_is_there(state, booked) for booked in one.gpus)]
    )


def _moved(state: ClusterState, booking: BookingMade) -> Iterator[Event]:
    """Move the booking to other GPUs, if some of its GPUs are lost or out of service and there are others."""
    lost = [booked for booked in booking.gpus if not _is_there(state, booked)]
    if not lost:
        return
    since = max(booking.since, state.bookings.now)
    request = BookingRequest(
        user=booking.user,
        count=len(booking.gpus),
        since=since,
        until=booking.until,
        on_node=booking.on_node,
        gpu_type=booking.gpu_type,
    )
    try:
        gpus = choose(state, request, state.bookings.now, booking)
    except ImpossibleError:
        return
    yield BookingMoved(booking.booking, gpus, _why_lost(state, lost[0]))


def _is_there(state: ClusterState, booked: BookedGpu) -> bool:
    node = state.nodes.get(booked.node)
    facts = node.gpus.get(booked.gpu) if node is not None and not node.lost and node.drain is None else None
    return facts is not None and facts.healthy


def _why_lost(state: ClusterState, booked: BookedGpu) -> str:
    node = state.nodes.get(booked.node)
    if node is not None and node.drain is not None and not node.lost:
        return f"node {node.id} is out of service"
    return f"GPU {booked.gpu} of node {booked.node} is lost"


# --- the fold ---


def _make(state: ClusterState, event: BookingMade, now: float) -> None:
    state.bookings.add(event)
    state.bookings.look(now)
    _keep_books(state)


def _move(state: ClusterState, event: BookingMoved, now: float) -> None:
    state.bookings.move(event.booking, event.gpus)


def _cancel(state: ClusterState, event: BookingCancelled, now: float) -> None:
    state.bookings.cancel(event.booking)
    _keep_books(state)


def _keep_books(state: ClusterState) -> None:
    """Let placing look at bookings only while there are any."""
    for pool in state.pools.values():
        pool.books.booked = state.bookings or None
    if not state.bookings:
        state.waiting_index = state.in_the_way = None
    state.look_again()


# --- in words ---


def _say_made(event: BookingMade) -> str:
    made = f"by {event.by}: " if event.by not in ("", event.user) else ""
    note = f" ({event.note})" if event.note else ""
    return f"{made}{_booked(event.gpus)} {reserved_for(event)}{note}"


def _booked(gpus: tuple[BookedGpu, ...]) -> str:
    nodes = list(dict.fromkeys(booked.node for booked in gpus))
    return f"{count_gpus(len(gpus))} of node {', '.join(nodes)}"


RULES: Final = (
    Rule(BookingMade, apply=_make, say=_say_made),
    Rule(
        BookingMoved,
        apply=_move,
        say=lambda event: f"reservation {event.booking} moved to {_booked(event.gpus)}: {event.reason}",
    ),
    Rule(
        BookingCancelled,
        apply=_cancel,
        say=lambda event: f"reservation {event.booking} cancelled by {event.by or 'user'}",
    ),
)
