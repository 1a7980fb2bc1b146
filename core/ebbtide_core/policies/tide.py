"""Tide: whoever is expected to be done soonest goes first, and room is made where that delays everybody least."""

import os
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import ClassVar, Final

from ebbtide_core.admission.queues import Queue, QueueKey
from ebbtide_core.estimates.outlook import Kind, Outlook, Outlooks, kinds_of
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, JobId, NodeAllocation, NodeId
from ebbtide_core.policies.defragment import defragment
from ebbtide_core.policies.draft import Draft
from ebbtide_core.policies.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.policies.policy import JobImportance, Policy
from ebbtide_core.policies.preemption import (
    Choice,
    Nodes,
    claim,
    could_make_room,
    may_be_preempted,
    minimal_set,
    suffice,
)
from ebbtide_core.policies.staying import STICKY, Stay, stays_by_itself
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot

AREA = float(os.environ.get("T_AREA", "0"))
SLOW = float(os.environ.get("T_SLOW", "0"))
REL = float(os.environ.get("T_REL", "1"))
AHEAD = float(os.environ.get("T_AHEAD", "1"))
MAKE = int(os.environ.get("T_MAKE", "4"))
WAITX = float(os.environ.get("T_WAITX", "1"))
TRIES = int(os.environ.get("T_TRIES", "8"))
QUARTER = float(os.environ.get("T_QUARTER", "0.25"))
OVERSIZE = float(os.environ.get("T_OVER", "0"))

URGENT: Final = 100.0
"""How much more a second counts for a job of a more urgent priority."""
RESTART_S: Final = 30.0
"""The assumed time that a job takes to come back, in seconds, before that was measured."""


@dataclass(frozen=True, slots=True)
class Tide(Policy):
    """The policy's options."""

    bound: float = 8.0
    min_run_s: float = 600.0
    resize_after_s: float = 60.0
    goes_by: ClassVar[frozenset[JobImportance]] = frozenset({JobImportance.PRIORITY, JobImportance.WEIGHT})

    def queue(self) -> "Line":
        return Line(self.bound)

    def ranking(self, state: PoolState) -> Ranking:
        return Tides(state)

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        if job.priority < waiting.priority:
            return Stay(f"of priority {job.priority}, which is more urgent than {waiting.priority}")
        if job.priority == waiting.priority and job.running and job.attempts[-1].sticky:
            return STICKY
        return stays_by_itself(job, self.min_run_s, now)

    def plan(self, snapshot: Snapshot) -> Plan:
        draft = Draft(snapshot)
        fit_ranges(draft)
        _Pass(self, draft).run()
        grow(draft, self.resize_after_s)
        return draft.plan()


Entry = tuple[float, int, Job]


class Line(Queue):
    """The waiting jobs by priority and size, those that are expected to be done soonest first."""

    def __init__(self, bound: float) -> None:
        super().__init__(_place)
        self.outlooks: Outlooks | None = None
        self._bound = bound
        self._known: dict[JobId, tuple[int, int, Entry, Entry]] = {}
        self.lines: dict[int, dict[int, list[Entry]]] = {}
        self.due: dict[int, list[Entry]] = {}
        self.outlook_of: dict[JobId, Outlook] = {}
        self._of: dict[Kind, dict[JobId, Job]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Job]:
        for priority in sorted(self.lines):
            entries = sorted(entry for line in self.lines[priority].values() for entry in line)
            yield from (job for _, _, job in entries)

    def add(self, key: QueueKey, job: Job) -> None:
        assert self.outlooks is not None
        outlook = self.outlooks.of(job, 0.0)
        area = (max(job.gpus_min, WHOLE // 4) / WHOLE) ** AREA
        entry = (outlook.left_s * area / job.weight, job.sequence, job)
        due = (job.submitted + job.times.held_s + self._bound * outlook.length_s, job.sequence, job)
        self.outlook_of[job.id] = outlook
        self._known[job.id] = (job.priority, job.gpus_min, entry, due)
        insort(self.lines.setdefault(job.priority, {}).setdefault(job.gpus_min, []), entry)
        insort(self.due.setdefault(job.priority, []), due)
        for kind in kinds_of(job):
            self._of.setdefault(kind, {})[job.id] = job

    def remove(self, key: QueueKey, job: Job) -> None:
        priority, size, entry, due = self._known.pop(job.id)
        del self.outlook_of[job.id]
        lines = self.lines[priority]
        del lines[size][bisect_left(lines[size], entry)]
        if not lines[size]:
            del lines[size]
            if not lines:
                del self.lines[priority]
        del self.due[priority][bisect_left(self.due[priority], due)]
        if not self.due[priority]:
            del self.due[priority]
        for kind in kinds_of(job):
            known = self._of.get(kind)
            if known is not None:
                known.pop(job.id, None)
                if not known:
                    del self._of[kind]

    def sort_anew(self, kinds: list[Kind]) -> None:
        jobs = {id: job for kind in kinds for id, job in self._of.get(kind, {}).items()}
        for job in jobs.values():
            key = self.order(job)
            self.remove(key, job)
            self.add(key, job)


def _place(job: Job) -> QueueKey:
    return (job.priority, job.sequence, job.weight, job.gpus_min, job.gpus_max, job.times.work_s)


class Tides:
    """What has ended, what runs where, and how often room appears."""

    def __init__(self, state: PoolState) -> None:
        assert isinstance(state.queue, Line)
        self._state = state
        self._line = state.queue
        self.outlooks = self._line.outlooks = Outlooks(state)
        self.sticky: dict[JobId, int] = {}
        self.priorities: dict[int, int] = {}
        self._lengths: list[float] = []
        self._starts: list[float] = []
        self._placed: dict[JobId, tuple[int, float, float]] = {}
        self._rooms: dict[JobId, Allocation] = {}
        self._dirty: set[NodeId] = set()
        self._rates: dict[NodeId, list[float]] = {}
        self._sums: dict[int, float] = {}

    def update(self, job: Job) -> None:
        if changed := self.outlooks.learn(job):
            self._line.sort_anew(changed)
        room, known = job.planned, self._rooms.get(job.id)
        if room is not known:
            if known is not None:
                self._dirty.update(known.node_ids)
                del self._rooms[job.id]
            if room is not None:
                self._dirty.update(room.node_ids)
                self._rooms[job.id] = room
        self._note_place(job)
        if room is not None and job.running and job.attempts[-1].sticky:
            self.sticky[job.id] = room.share
        else:
            self.sticky.pop(job.id, None)

    def _note_place(self, job: Job) -> None:
        if job.planned is None or not job.running:
            if (known := self._placed.pop(job.id, None)) is not None:
                priority, length, start = known
                del self._lengths[bisect_left(self._lengths, length)]
                del self._starts[bisect_left(self._starts, start)]
                self.priorities[priority] -= 1
                if not self.priorities[priority]:
                    del self.priorities[priority]
        elif job.id not in self._placed:
            start = job.attempts[-1].placed
            length = self.outlooks.of(job, start).length_s
            self._placed[job.id] = (job.priority, length, start)
            insort(self._lengths, length)
            insort(self._starts, start)
            self.priorities[job.priority] = self.priorities.get(job.priority, 0) + 1

    def longest(self, now: float) -> float:
        """Return an upper bound of the expected lengths of the running jobs."""
        return max(1.0, self._lengths[-1] + now - self._starts[0]) if self._lengths else 1.0

    def every_s(self, parts: int, now: float) -> float:
        """Return the mean time in seconds between two moments at which room of that size appears."""
        books, size = self._state.books, -(-parts // WHOLE)
        if self._dirty or len(self._rates) != len(books.usable):
            for id in self._rates.keys() - books.usable.keys():
                del self._rates[id]
            for id in books.usable.keys() - self._rates.keys():
                self._dirty.add(id)
            for id in self._dirty:
                if id in books.usable:
                    self._rates[id] = self._rates_of(id, now)
            self._dirty.clear()
            self._sums.clear()
        rate = self._sums.get(size)
        if rate is None:
            rate = sum([rates[size] for rates in self._rates.values() if size < len(rates)])
            self._sums[size] = rate
        return 1 / rate if rate > 0 else float("inf")

    def _rates_of(self, id: NodeId, now: float) -> list[float]:
        node, jobs = self._state.books.usable[id], self._state.jobs
        here = []
        for other in sorted(node.planned):
            job = jobs[other]
            gpus = sum([len(piece.gpus) for piece in job.planned.nodes if piece.node == id]) if job.planned else 0
            here.append((max(1.0, self.outlooks.of(job, now).left_s), gpus))
        here.sort()
        idle = node.idle(node.promised)
        total = sum([1 / left for left, _ in here])
        rates = [total]
        for size in range(1, len(node.slices) + 1):
            if idle >= size:
                rates.append(total)
                continue
            single = sum([1 / left for left, gpus in here if idle + gpus >= size])
            if not single:
                free = idle
                for left, gpus in here:
                    free += gpus
                    if free >= size:
                        single = 1 / left
                        break
            rates.append(single)
        return rates


class _Pass:
    def __init__(self, policy: Tide, draft: Draft) -> None:
        self.policy = policy
        self.draft = draft
        self.snapshot = draft.snapshot
        self.tides: Tides = draft.snapshot.ranking
        line = draft.snapshot.queue
        assert isinstance(line, Line)
        self.line = line
        self.now = draft.snapshot.now
        self.refused = 0
        self.made = 0
        self.total = sum([len(node.slices) for node in draft.snapshot.nodes.values()]) * WHOLE
        self._outlooks: dict[JobId, Outlook] = {}
        self.held = 0
        self._table: list[tuple[NodeId, list[tuple[Job, int]]]] | None = None
        self.least_urgent = max(self.tides.priorities, default=0)

    def outlook(self, job: Job) -> Outlook:
        found = self._outlooks.get(job.id)
        if found is None:
            found = self.line.outlook_of.get(job.id)
        if found is None:
            found = self._outlooks[job.id] = self.tides.outlooks.of(job, self.now)
        return found

    def run(self) -> None:
        for priority in sorted(self.line.lines):
            self.offer_due(priority)
            self.offer_soonest(priority)

    def offer_due(self, priority: int) -> None:
        draft = self.draft
        due = self.line.due.get(priority, [])
        for time, _, job in due:
            if time > self.now:
                draft.recheck(time)
                return
            room = sum(self.tides.sticky.values()) + self.held
            if room and room + job.gpus_min > self.total * QUARTER:
                return
            if draft.admit(job) or admit_by_shrinking(draft, job, self.policy.resize_after_s) or self.make_room(job, True):
                placement = draft.placements[job.id]
                draft.place(job, placement.allocation, placement.reason, placement.claim, sticky=True)
                self.held += job.gpus_min
                continue
            draft.wait(job)
            if self.keep(job):
                self.held += job.gpus_min

    def offer_soonest(self, priority: int) -> None:
        draft, heads = self.draft, []
        for size, line in self.line.lines[priority].items():
            heads.append((line[0], line, 0, 0))
        heapify(heads)
        while heads:
            (_, _, job), line, index, failed = heads[0]
            if job.id not in draft.placements and job.id not in draft.waits:
                if not self.offer(job):
                    failed += 1
            index += 1
            most = draft.trial.most
            if index < len(line) and (failed < TRIES and line[index][2].gpus_min <= most):
                heapreplace(heads, (line[index], line, index, failed))
            else:
                heappop(heads)

    def offer(self, job: Job) -> bool:
        draft = self.draft
        if job.gpus_min <= draft.trial.most and draft.admit(job):
            return True
        if admit_by_shrinking(draft, job, self.policy.resize_after_s):
            return True
        if self.made < MAKE and self.make_room(job, False):
            return True
        if self.refused == 0 and defragment(draft, job, self.policy.resize_after_s):
            return True
        if self.refused == 0:
            draft.wait(job)
        self.refused += 1
        return False

    # --- preemption ---

    def slow(self, job: Job, length_s: float) -> float:
        age = self.now - job.submitted - job.times.held_s
        return max(1.0, age / max(length_s, 1.0)) ** SLOW

    def cost_s(self, job: Job) -> float:
        known = job.suspending.restart_cost_s
        if known is not None:
            return known
        return (job.spec.grace_s if job.suspending.save_s is None else job.suspending.save_s) + RESTART_S

    def save_s(self, job: Job) -> float:
        return job.spec.grace_s if job.suspending.save_s is None else job.suspending.save_s

    def loss(self, job: Job, victim: Job) -> float:
        mine, theirs = self.outlook(job), self.outlook(victim)
        delay = mine.left_s + self.cost_s(victim)
        if OVERSIZE and victim.planned:
            delay *= max(1.0, victim.planned.share / max(job.gpus_min, WHOLE / 4)) ** OVERSIZE
        length = max(1.0, theirs.length_s)
        return victim.weight * self.slow(victim, length) * delay / length**REL / (URGENT if job.priority < victim.priority else 1.0)

    def make_room(self, job: Job, due: bool) -> bool:
        draft, mine = self.draft, self.outlook(job)
        length = max(1.0, mine.length_s)
        wait = self.tides.every_s(job.gpus_min, self.now) * (1 + AHEAD * self.refused) * WAITX
        worth = job.weight * self.slow(job, length) / length**REL
        gain = wait * worth
        least = mine.left_s / self.tides.longest(self.now) ** REL / (URGENT if job.priority < self.least_urgent else 1.0)
        if gain <= least:
            return False
        self.made += 1
        best: tuple[float, list[Job], Nodes] | None = None
        gang = draft.trial.is_gang(job)
        need = -(-job.gpus_min // WHOLE)
        candidates: Iterator[tuple[Nodes, list[Job]]]
        if gang:
            candidates = iter([(None, [other for _, there in self.table() for other, _ in there])])
        else:
            candidates = (((id,), [other for other, _ in there]) for id, there in self.table() if self.enough(id, there, need))
        for nodes, there in candidates:
            limit = gain if best is None else min(gain, best[0])
            losses = sorted([(self.loss(job, v), v.sequence, v) for v in there if self.may(job, v)])
            losses = [entry for entry in losses if entry[0] + worth * self.save_s(entry[2]) < limit]
            if not losses:
                continue
            if nodes is not None and not could_make_room(draft, job, [v.planned for _, _, v in losses if v.planned], nodes[0]):
                continue
            chosen = None
            for _, _, v in losses:
                if suffice(draft, job, [v], nodes):
                    chosen = [v]
                    break
            if chosen is None:
                chosen = minimal_set(draft, job, [v for _, _, v in losses], nodes)
            if not chosen:
                continue
            total = sum([self.loss(job, v) for v in chosen]) + worth * max([self.save_s(v) for v in chosen])
            if total < limit:
                best = total, chosen, nodes
        if best is None:
            return False
        _, victims, nodes = best
        claim(draft, job, (victims, nodes), f"preempted by job {job.id}")
        return True

    def table(self) -> list[tuple[NodeId, list[tuple[Job, int]]]]:
        """Return the jobs with room on each node that may be preempted, and how many GPUs each has there."""
        if self._table is None:
            self._table = []
            for id, node in self.snapshot.nodes.items():
                there = []
                for other in sorted(node.planned):
                    victim = self.snapshot.job(other)
                    if victim.preemptible and victim.planned is not None:
                        there.append((victim, sum([len(p.gpus) for p in victim.planned.nodes if p.node == id])))
                if there:
                    self._table.append((id, there))
        return self._table

    def enough(self, id: NodeId, there: list[tuple[Job, int]], need: int) -> bool:
        node = self.snapshot.nodes[id]
        return node.idle(self.draft.trial.use(id)) + sum([gpus for _, gpus in there]) >= need

    def may(self, job: Job, victim: Job) -> bool:
        if victim.priority < job.priority or victim.id == job.id:
            return False
        if job.gpus_min == 0 and victim.gpus_min:
            return False
        if victim.priority == job.priority:
            if not victim.running or victim.attempts[-1].sticky:
                return False
            if self.outlook(victim).left_s <= self.outlook(job).left_s + self.cost_s(victim):
                return False
        return may_be_preempted(self.draft, victim, self.policy.min_run_s)

    # --- reservations ---

    def keep(self, job: Job) -> bool:
        """Keep what is free of the node where ``job`` is expected to fit first."""
        draft, spec = self.draft, job.spec
        if draft.trial.is_gang(job) or job.gpus_min < WHOLE:
            return False
        best: tuple[float, NodeId] | None = None
        need = job.gpus_min // WHOLE
        for id, node in self.snapshot.nodes.items():
            jobs = draft.planned_on(id)
            rooms = [room for other in jobs if (room := draft.allocation(other)) is not None]
            if not could_make_room(draft, job, rooms, id):
                continue
            use = draft.trial.use(id)
            idle, cpus, mem = node.idle(use), node.facts.cpus - use.cpus, node.facts.mem_bytes - use.mem_bytes
            at = 0.0
            for left, _, other in sorted([(self.outlook(other).left_s, other.sequence, other) for other in jobs]):
                if idle >= need and cpus >= spec.cpus and mem >= spec.mem_bytes:
                    break
                at = left
                room = draft.allocation(other)
                for piece in room.nodes if room else ():
                    if piece.node == id:
                        idle, cpus, mem = idle + len(piece.gpus), cpus + piece.cpus, mem + piece.mem_bytes
            if idle < need or cpus < spec.cpus or mem < spec.mem_bytes:
                continue
            if best is None or at < best[0]:
                best = at, id
        if best is None:
            return False
        node = self.snapshot.nodes[best[1]]
        use = draft.trial.use(node.id)
        free = [whole for whole in node.slices.values() if use.share(whole.gpu) == 0][:need]
        cpus = min(spec.cpus, max(0.0, node.facts.cpus - use.cpus))
        mem = min(spec.mem_bytes, max(0, node.facts.mem_bytes - use.mem_bytes))
        if free or cpus or mem:
            draft.trial.take(Allocation((NodeAllocation(node.id, tuple(free), cpus, mem),)))
        return True
