"""Tide: whoever is expected to be done soonest goes first, and room is made where that delays everybody least in sum.

Waiting jobs have their turns by priority, and within a priority by their time per completion over their weight (see
`ebbtide_core.estimates.outlook`), which counts `TRIAL_WEIGHT` times for a trial-and-error job. Whoever fits may pass.
For a job that does not fit, elastic jobs shrink; else jobs step aside if that costs less than to wait:

    2 · Σ price(v) · (t + cost(v))  <  price(j) · (W - save)

A second of delay is priced by ``price``, the weight over the expected length, so that a delay counts relative to how
long a job takes anyway. Job j takes t seconds per completion and would have room in W seconds if it waits: when room is
expected to appear (`RoomRates`), and as much later as it has waited in vain, but no later than it is due. Each victim v
is delayed by t and by what stepping aside and coming back costs it, as measured, and j by the longest of their saves. A
victim must be expected to take `TWICE` as long as j, and its own cost longer, so that none steps aside for a job
that it would preempt in turn, nor for a small error of an estimate. Jobs of its own priority step aside only for a
trial-and-error job, for one that is known to be done soon (`may_ask_equals`), and for one that is due. The delay of a
less urgent job counts next to nothing, so it steps aside unless room appears in a hundredth of t anyway; a more urgent
job is never preempted.

A job that waits for ``bound`` times its expected length is due. Due jobs have their turns before the others of their
priority, in the order in which they became due, as long as due jobs have no more than `SHARE_OF_DUE` of the GPUs. What
is free where such a job is expected to fit first is kept for it; for one more expected length, jobs that are expected
to be done by then may have it. Once it runs, no job of its priority preempts it. So from then on a job is passed by no
job that was submitted after it was due, unless that does not take its room.
"""

import math
from bisect import insort
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import chain, islice
from typing import ClassVar, Final

from ebbtide_core.admission.queues import demand_besides_size, demand_of
from ebbtide_core.estimates.outlook import Outlook, Outlooks
from ebbtide_core.events.words import duration
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, JobId, NodeAllocation, NodeId
from ebbtide_core.planning.defragment import defragment
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.planning.policy import JobImportance, Policy
from ebbtide_core.planning.preemption import (
    Choice,
    Nodes,
    claim,
    could_make_room,
    may_be_preempted,
    minimal_set,
    nodes_of,
    suffice,
)
from ebbtide_core.planning.room_rates import (
    NEXT_TO_NOTHING,
    Candidate,
    RoomRates,
    at_risk_s,
    cost_s,
    gpus_on,
    may_ask_equals,
    price,
    save_s,
)
from ebbtide_core.planning.staying import NOT_FOR_CPUS, Stay, stays_by_itself
from ebbtide_core.planning.tide_queue import TideQueue, due_at
from ebbtide_core.resources.eligibility import holds_up
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot

PATIENCE: Final = 0.01
"""The wait for which a job preempts no less urgent ones, as a share of its time per completion."""
TWICE: Final = 2.0
"""How many times a victim's delay counts, and how many times as long as the other job it has to be expected to take."""
SHARE_OF_DUE: Final = 0.25
"""The share of the GPUs that due jobs have at most, or one due job if it needs more."""
MOST_REFUSED: Final = 8
"""The jobs of one size for which room is sought in vain in one pass."""
MOST_LOOKED_AT: Final = 64
"""The jobs of one size that are looked at in one pass, and the due jobs of one priority."""
SOONEST_AGAIN_S: Final = 60.0
"""The least time after which a pass weighs again whether a job should wait, in seconds, if nothing else happens."""
MOST_TRIED: Final = 32
"""The nodes, the cheapest first, on which a job looks for less urgent ones that step aside; once it has found some, it
looks at a quarter of the rest.
"""
MOST_WEIGHED: Final = 4
"""The due jobs, and the others, of one priority for which a pass weighs whether others should step aside."""


@dataclass(frozen=True, slots=True)
class Tide(Policy):
    """The policy's options.

    ``bound``: a job is due once the time since its submit is this many times its expected length. ``min_run_s``: as for
    `FitGpp`. ``resize_after_s``: as for `Fifo`.
    """

    bound: float = 8.0
    min_run_s: float = 1.0
    resize_after_s: float = 60.0
    goes_by: ClassVar[frozenset[JobImportance]] = frozenset({JobImportance.PRIORITY, JobImportance.WEIGHT})

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bound) and self.bound >= 1):
            raise ValueError(f"bound is at least 1, not {self.bound}")

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """Apply the rules by priority and of the job itself; what is weighed is in the reason of the waiting job."""
        if job.priority < waiting.priority:
            return Stay(f"of priority {job.priority}, which is more urgent than {waiting.priority}")
        if job.gpus_min and not waiting.gpus_min:
            return NOT_FOR_CPUS
        return stays_by_itself(job, self.min_run_s, now)

    def queue(self) -> TideQueue:
        """Order waiting jobs by priority, then by who is expected to be done soonest."""
        return TideQueue(self.bound)

    def ranking(self, state: PoolState) -> Ranking:
        """Index what earlier jobs tell, and how often room appears."""
        assert isinstance(state.queue, TideQueue)
        return Tides(state, state.queue)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Offer each job its turn, then grow."""
        draft = Draft(snapshot)
        fit_ranges(draft)
        turns = _Turns(self, draft)
        for priority in sorted(turns.queue.by_priority):
            turns.offer_to_due(priority)
            turns.offer_to_soonest(priority)
        grow(draft, self.resize_after_s)
        return draft.plan()


class Tides:
    """What earlier jobs tell, how often room appears, and the shares of the jobs that were due when they started."""

    def __init__(self, state: PoolState, queue: TideQueue) -> None:
        self.outlooks = queue.outlooks = Outlooks(state.speedup, state.curve)
        self.rates = RoomRates(state, self.outlooks)
        self.was_due: dict[JobId, int] = {}
        self._queue = queue
        self._rooms: dict[JobId, tuple[Allocation, int]] = {}
        """The room of each job, and the number of the attempt that runs there; 0 if that is still to come."""

    def update(self, job: Job) -> None:
        """Take in that ``job`` changed."""
        if changed := self.outlooks.learn(job):
            self._queue.sort_anew(changed)
        known = self._rooms.get(job.id)
        room = None if job.planned is None else (job.planned, job.attempts[-1].number if job.running else 0)
        if room == known:
            return
        for node in {*(known[0].node_ids if known is not None else ()), *nodes_of(job)}:
            self.rates.change(node)
        if room is None:
            del self._rooms[job.id]
            self.was_due.pop(job.id, None)
            return
        self._rooms[job.id] = room
        if job.running and (job.id in self.was_due or self._is_due(job, job.attempts[-1].placed)):
            self.was_due[job.id] = room[0].share

    def _is_due(self, job: Job, at: float) -> bool:
        return due_at(job, self.outlooks.of(job, at), self._queue.bound) <= at


class _Turns:
    """One pass of the policy: it offers each waiting job its turn."""

    def __init__(self, policy: Tide, draft: Draft) -> None:
        self.policy = policy
        self.draft = draft
        self.snapshot = draft.snapshot
        self.tides: Tides = draft.snapshot.ranking
        self.tides.rates.renew(draft.snapshot.now)
        queue = draft.snapshot.queue
        assert isinstance(queue, TideQueue)
        self.queue = queue
        self.now = draft.snapshot.now
        self.smallest = min([size for waiting in queue.by_priority.values() for size in waiting.by_size], default=0)
        self.ahead = 0
        """How many jobs have had their turns in vain."""
        self.weighed = 0
        self.kept: list[tuple[float, int, Job, list[NodeId]]] = []
        """The due jobs that wait, by the seconds until they are expected to get room; and on which nodes."""
        self._outlooks: dict[JobId, Outlook] = {}
        self._planned: dict[NodeId, list[tuple[int, Job]]] = {}
        self._soonest: dict[NodeId, list[tuple[float, int, Job]]] = {}
        self._too_large: dict[Hashable, list[tuple[int, float, int]]] = {}
        """The GPUs, CPUs and memory of jobs that did not fit, by all else that decides where they fit."""
        self._first_rooms: dict[Hashable, tuple[list[NodeId], float]] = {}
        """Where due jobs are expected to fit first, by demand, until another job gets room."""
        self._fits_in: dict[Hashable, dict[NodeId, float | None]] = {}
        """In how many seconds they are expected to fit on each node, until something changes there."""

    def outlook(self, job: Job) -> Outlook:
        """Return the outlook of ``job`` now."""
        found = self._outlooks.get(job.id)
        if found is None:
            found = self._outlooks[job.id] = self.queue.outlook(job) or self.tides.outlooks.of(job, self.now)
        return found

    # --- turns ---

    def offer_to_due(self, priority: int) -> None:
        """Offer the due jobs of ``priority`` their turns; note in ``kept`` where room is to be kept for the rest."""
        draft, total = self.draft, sum([len(node.slices) for node in self.snapshot.nodes.values()]) * WHOLE
        given = sum(self.tides.was_due.values())
        self.weighed = 0
        for due, _, job in islice(self.queue.by_priority[priority].by_due, MOST_LOOKED_AT):
            if due > self.now:
                draft.recheck(due)
                return
            if given and given + job.gpus_min > total * SHARE_OF_DUE:
                return
            if self._fits(job):
                given += job.gpus_min
                continue
            where, wait_s = self._first_room(job) if holds_up(job, self.snapshot.books) else ([], math.inf)
            if not where:
                continue
            given += job.gpus_min
            if not self._weigh(job, wait_s, due=True):
                self._weigh_again(job, wait_s)
                self._wait(job, f"; it is due, and gets room in about {duration(wait_s)}")
                at_once = self.now >= due + self.outlook(job).length_s
                insort(self.kept, (0.0 if at_once else wait_s, job.sequence, job, where))

    def offer_to_soonest(self, priority: int) -> None:
        """Offer the jobs of ``priority`` their turns, soonest done first; leave out sizes that were refused often."""
        self.weighed = 0
        lines = self.queue.by_priority[priority].by_size.values()
        heads = [(line[0], line, 0, 0) for line in lines]
        heapify(heads)
        while heads:
            (_, _, job), line, index, refused = heads[0]
            self._keep_from(self.outlook(job).left_s)
            if job.id not in self.draft.placements and job.id not in self.draft.waits:
                refused += not self._offer(job)
            index += 1
            if index < min(len(line), MOST_LOOKED_AT) and refused < MOST_REFUSED:
                heapreplace(heads, (line[index], line, index, refused))
            else:
                heappop(heads)
        self._keep_from(math.inf)

    def _keep_from(self, left_s: float) -> None:
        """Keep room for the due jobs that get it before a job that takes ``left_s`` is expected to be done."""
        while self.kept and self.kept[0][0] <= left_s:
            _, _, job, where = self.kept.pop(0)
            self._keep(job, where)

    def _offer(self, job: Job) -> bool:
        """Start ``job`` if it may start now; return False if that was tried in vain."""
        if self._fits(job):
            return True
        if not holds_up(job, self.snapshot.books):
            self.draft.wait(job)
            return False
        if self.ahead and self.weighed >= MOST_WEIGHED:
            self.ahead += 1
            return False
        wait_s = self._wait_s(job)
        if self._weigh(job, wait_s, due=False):
            return True
        if not self.ahead:
            if defragment(self.draft, job, self.policy.resize_after_s):
                return True
            self._weigh_again(job, wait_s)
            self._wait(job, f"; {self.outlook(job)}, and would have room in about {duration(wait_s)}")
        self.ahead += 1
        return False

    def _wait_s(self, job: Job) -> float:
        """Return in how many seconds ``job`` would have room if no other stepped aside for it.

        The rate of room is a guess worth one observation. So a job that has waited in vain is expected to wait for as
        much longer.
        """
        passed = self.smallest < job.gpus_min
        room_s = self.tides.rates.wait_s(job, passed)
        waited_s = self.now - _waits_since(job, self.now)
        return min(room_s * (1 + self.ahead) + waited_s, max(0.0, self.queue.due(job) - self.now))

    def _weigh_again(self, job: Job, wait_s: float) -> None:
        """Request another pass for when ``job`` is expected to have room, or has waited for as long as it takes."""
        self.draft.recheck(self.now + max(SOONEST_AGAIN_S, min(wait_s, self.outlook(job).left_s)))

    def _wait(self, job: Job, more: str) -> None:
        self.draft.wait(job)
        self.draft.waits[job.id] += more

    def _fits(self, job: Job) -> bool:
        """Start ``job`` if there is room, or if elastic jobs give some back."""
        spec = job.spec
        known = self._too_large.setdefault(demand_besides_size(job), [])
        if any(job.gpus_min >= gpus and spec.cpus >= cpus and spec.mem_bytes >= bytes for gpus, cpus, bytes in known):
            return False
        if job.gpus_min <= self.draft.trial.most and self.draft.admit(job):
            self._note_changes(self.draft.placements[job.id].allocation.node_ids)
            return True
        if admit_by_shrinking(self.draft, job, self.policy.resize_after_s):
            self._too_large.clear()
            self._note_changes(self.snapshot.nodes)
            return True
        known.append((job.gpus_min, spec.cpus, spec.mem_bytes))
        return False

    def _note_changes(self, nodes: Iterable[NodeId]) -> None:
        """Forget what depends on who would have room on ``nodes``."""
        self._first_rooms.clear()
        for by_node in self._fits_in.values():
            for id in nodes:
                by_node.pop(id, None)

    # --- preemption ---

    def _weigh(self, job: Job, wait_s: float, *, due: bool) -> bool:
        """Have others step aside for ``job`` if that costs less than a wait of ``wait_s``; return whether they do."""
        if self.weighed >= MOST_WEIGHED:
            return False
        mine = self.outlook(job)
        worth = price(job, mine)
        longer = TWICE if may_ask_equals(job, mine) else max(TWICE, self.policy.bound) if due else math.inf
        nodes = self.tides.rates.cheapest_first(
            job.priority,
            equals=longer < math.inf,
            less_urgent=wait_s > PATIENCE * mine.left_s,
        )
        first = next(nodes, None)
        if first is None or first.price * mine.left_s >= worth * wait_s:
            return False
        self.weighed += 1
        best = self._best_choice(job, chain([first], nodes), worth, wait_s, longer)
        if best is None:
            return False
        last = self.outlook(best[0][-1])
        why = f"job {job.id} ({mine}) would have room in about {duration(wait_s)}, this one is {last}"
        claim(self.draft, job, best, f"preempted by job {job.id}: {why}")
        self._too_large.clear()
        left = [node for victim in best[0] for node in nodes_of(victim)]
        self._note_changes([*left, *self.draft.placements[job.id].allocation.node_ids])
        return True

    def _best_choice(
        self, job: Job, nodes: Iterator[Candidate], worth: float, wait_s: float, longer: float
    ) -> Choice | None:
        """Return the cheapest victims whose delay costs less than ``job`` waits; None if there are none.

        What bounds the choice on a node is mostly less than a minute old, in which a price hardly falls by half. Half
        of it times `TWICE` bounds what a second costs there; so the search ends at the first node that cannot be
        cheaper.
        """
        best, least, left_s = None, worth * wait_s, self.outlook(job).left_s
        if self.draft.trial.is_gang(job):
            everywhere = {
                other.id: other
                for candidate in nodes
                if candidate.left_s > TWICE * left_s
                for other in self._able(job, candidate.node, longer)
            }
            found = self._cheapest(job, None, [*everywhere.values()], worth, least)
            return None if found is None else found[1]
        tried = 0
        for cheapest, _, id, most_s in nodes:
            at_least = worth * PATIENCE * left_s if most_s == math.inf else 0.0
            if cheapest * left_s + at_least >= least or tried >= MOST_TRIED:
                break
            if most_s > TWICE * left_s and (able := self._able(job, id, longer)):
                if most_s == math.inf:
                    tried += 1 if best is None else 4
                found = self._cheapest(job, (id,), able, worth, least)
                if found is not None:
                    least, best = found
        return best

    def _able(self, job: Job, id: NodeId, longer: float) -> list[Job]:
        """Return the jobs of a node that may step aside for ``job``; none if all together have too few GPUs there."""
        node, need, there = self.snapshot.nodes[id], -(-job.gpus_min // WHOLE), self._planned_on(id)
        left = 0 if self.draft.trial.is_gang(job) else need - node.idle(self.draft.trial.use(id))
        if sum([gpus for gpus, _ in there]) < left:
            return []
        able = [entry for entry in there if (entry[0] or not need) and self._may_step_aside(entry[1], job, longer)]
        return [] if sum([gpus for gpus, _ in able]) < left else [other for _, other in able]

    def _planned_on(self, id: NodeId) -> list[tuple[int, Job]]:
        """Return the jobs with room on that node, each with the number of GPUs there."""
        found = self._planned.get(id)
        if found is None:
            jobs = map(self.snapshot.job, sorted(self.snapshot.nodes[id].planned))
            found = self._planned[id] = [(gpus_on(job, id), job) for job in jobs]
        return found

    def _may_step_aside(self, other: Job, job: Job, longer: float) -> bool:
        """Return whether ``other`` may be preempted for ``job`` if it pays."""
        if other.priority < job.priority or (other.gpus_min and not job.gpus_min):
            return False
        if other.priority == job.priority:
            if not other.running or longer == math.inf or other.id in self.tides.was_due:
                return False
            if self.outlook(other).left_s <= longer * self.outlook(job).left_s + cost_s(other):
                return False
        return may_be_preempted(self.draft, other, self.policy.min_run_s)

    def _loss(self, other: Job, job: Job) -> float:
        """Return what it costs that ``other`` steps aside for ``job``; hardly anything if it is less urgent."""
        theirs = self.outlook(other)
        loss = TWICE * price(other, theirs) * (self.outlook(job).left_s + cost_s(other) + at_risk_s(other, theirs))
        return loss if other.priority == job.priority else loss * NEXT_TO_NOTHING

    def _cheapest(
        self, job: Job, nodes: Nodes, there: list[Job], worth: float, least: float
    ) -> tuple[float, Choice] | None:
        """Return the cheapest victims on ``nodes`` and what they cost, if that is less than ``least``; else None."""
        losses = sorted([(self._loss(other, job), other.sequence, other) for other in there])
        able = [other for loss, _, other in losses if loss + worth * save_s(other) < least]
        rooms = [room for other in able if (room := self.draft.allocation(other)) is not None]
        if not able or (nodes is not None and not could_make_room(self.draft, job, rooms, nodes[0])):
            return None
        alone = next(([other] for other in able if suffice(self.draft, job, [other], nodes)), None)
        victims = alone or minimal_set(self.draft, job, able, nodes)
        if not victims:
            return None
        cost = sum([self._loss(other, job) for other in victims]) + worth * max(map(save_s, victims))
        if any(other.priority > job.priority for other in victims):
            cost += worth * PATIENCE * self.outlook(job).left_s
        return (cost, (victims, nodes)) if cost < least else None

    # --- room that is kept ---

    def _first_room(self, job: Job) -> tuple[list[NodeId], float]:
        """Return where ``job`` is expected to fit first, and in how many seconds; no nodes if nowhere."""
        found = self._first_rooms.get(demand := demand_of(job))
        if found is None:
            found = self._first_rooms[demand] = self._search_first_room(job)
        return found

    def _search_first_room(self, job: Job) -> tuple[list[NodeId], float]:
        spec, need = job.spec, -(-job.gpus_min // WHOLE)
        gang, each = self.draft.trial.is_gang(job), need // spec.nodes
        found: list[tuple[float, int, NodeId]] = []
        fits_in = self._fits_in.setdefault(demand_of(job), {})
        for index, (id, node) in enumerate(self.snapshot.nodes.items()):
            wanted = min(each, len(node.slices)) if gang else need
            if id not in fits_in:
                fits_in[id] = self._fits_in_s(job, id, wanted)
            at = fits_in[id]
            if at is not None and (wanted or not gang):
                found.append((at, index, id))
        found.sort()
        nodes, gpus = list[NodeId](), 0
        for at, _, id in found:
            nodes.append(id)
            gpus += min(each, len(self.snapshot.nodes[id].slices))
            if gpus >= need and len(nodes) >= spec.nodes:
                return nodes, at
        return [], math.inf

    def _fits_in_s(self, job: Job, id: NodeId, gpus: int) -> float | None:
        """Return in how many seconds ``job`` is expected to have so many GPUs of that node; None if it never has."""
        draft, spec, node = self.draft, job.spec, self.snapshot.nodes[id]
        if len(node.slices) < gpus:
            return None
        there = [entry for entry in self._leaving(id) if entry[2].id not in draft.evictions]
        rooms = [(left_s, room) for left_s, _, other in there if (room := other.planned) is not None]
        if not draft.trial.is_gang(job) and not could_make_room(draft, job, [room for _, room in rooms], id):
            return None
        use = draft.trial.use(id)
        idle, cpus, mem_bytes = node.idle(use), node.facts.cpus - use.cpus, node.facts.mem_bytes - use.mem_bytes
        at = 0.0
        pieces = ((left_s, piece) for left_s, room in rooms for piece in room.nodes if piece.node == id)
        for left_s, piece in pieces:
            if idle >= gpus and cpus >= spec.cpus and mem_bytes >= spec.mem_bytes:
                break
            at = left_s
            idle, cpus, mem_bytes = idle + len(piece.gpus), cpus + piece.cpus, mem_bytes + piece.mem_bytes
        return at if idle >= gpus and cpus >= spec.cpus and mem_bytes >= spec.mem_bytes else None

    def _leaving(self, id: NodeId) -> list[tuple[float, int, Job]]:
        """Return the jobs with room on that node, soonest done first."""
        found = self._soonest.get(id)
        if found is None:
            there = [(self.outlook(other).left_s, other.sequence, other) for _, other in self._planned_on(id)]
            found = self._soonest[id] = sorted(there)
        return found

    def _keep(self, job: Job, where: Sequence[NodeId]) -> None:
        """Keep what ``job`` needs of what is free on the nodes ``where``, so that no job behind it gets that."""
        left, pieces = -(-job.gpus_min // WHOLE), list[NodeAllocation]()
        for id in where:
            node, use = self.snapshot.nodes[id], self.draft.trial.use(id)
            idle = [whole for whole in node.slices.values() if use.share(whole.gpu) == 0][:left]
            left -= len(node.slices) if len(where) > 1 else len(idle)
            cpus = min(job.spec.cpus, max(0.0, node.facts.cpus - use.cpus))
            mem_bytes = min(job.spec.mem_bytes, max(0, node.facts.mem_bytes - use.mem_bytes))
            if idle or cpus or mem_bytes:
                pieces.append(NodeAllocation(id, tuple(idle), cpus, mem_bytes))
        if pieces:
            self.draft.trial.take(Allocation(tuple(pieces)))
            self._note_changes([piece.node for piece in pieces])


def _waits_since(job: Job, now: float) -> float:
    """Return the Unix time since which the job waits: of its submit or its last end; ``now`` if it runs."""
    last = job.attempt
    if last is None:
        return job.submitted
    return last.end.at if last.end is not None else now
