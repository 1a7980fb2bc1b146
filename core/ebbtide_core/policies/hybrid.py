"""HYBRID: sticky slots over preemptive priority (Çavdar, Chen and Alagöz; seed 004), and its two baselines.

A slot is one GPU. Some slots are *sticky*, which is a label on running jobs, not on GPUs. While sticky slots are free,
the waiting job that arrived first gets them, whatever its priority, and is never preempted (§3.1). The regular slots
are given out by preemptive priority: by priority, then by arrival; without a free slot, the job that started last in
the least urgent class is preempted (§3.2). A preempted job keeps its first arrival.

Where the paper is silent: a job with several GPUs needs as many sticky slots, which are kept free until its turn comes;
jobs that need more sticky slots than exist never wait for them. "The low-priority task that starts most recently" is
read as the newest job of the least urgent class below that of the job that needs its place; ties between equally
powerful slots are broken in the same way. A job that needs several GPUs preempts on one node, and only what it needs.
An elastic job takes as many slots as its smallest size; its surplus is taken back before any job is preempted. A job
that is resized leaves its sticky slot. Once a job that is larger than all regular slots together has its turn, no more
sticky slots are given out, and it gets both kinds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import ClassVar

from ebbtide_core.admission.queues import Queue, QueueKey
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, NodeId
from ebbtide_core.planning.chance import mix
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.planning.policy import JobImportance, Policy
from ebbtide_core.planning.preemption import (
    Choice,
    Nodes,
    cheapest_set,
    claim,
    makes_room,
    may_be_preempted,
    nodes_of,
)
from ebbtide_core.planning.production import PRODUCTION, weakness
from ebbtide_core.planning.slots import Slots, SlotsLeft
from ebbtide_core.planning.staying import Stay, stays_by_urgency
from ebbtide_core.resources.eligibility import holds_up
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Hybrid(Policy):
    """Sticky slots over preemptive priority.

    ``sticky``: how many slots are sticky; below 1, the share of all GPUs, rounded up to at least one (paper: 200 of
    3072, 6.5%). ``seed``: seeds the draw of slots for jobs that are not production. ``min_run_s``: how long a resumed
    job is spared, in seconds (paper: 0). ``resize_after_s``: as for `Fifo`.
    """

    sticky: float = 0.065
    seed: int = 0
    min_run_s: float = 600.0
    resize_after_s: float = 60.0
    goes_by: ClassVar[frozenset[JobImportance]] = frozenset({JobImportance.PRIORITY})

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sticky) and self.sticky > 0):
            raise ValueError(f"sticky is more than 0, not {self.sticky}; without sticky slots the policy is pri")

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """Apply the rule by priority."""
        return stays_by_urgency(job, waiting, self.min_run_s, now)

    def queue(self) -> Queue:
        """Order waiting jobs by priority, then by arrival."""
        return Queue(by_priority)

    def ranking(self, state: PoolState) -> Ranking:
        """Index the waiting jobs by arrival, and the running ones by start."""
        return Slots()

    def plan(self, snapshot: Snapshot) -> Plan:
        """Run the sticky phase, then the regular one."""
        return _Pass(snapshot, self.seed, self.min_run_s, self.sticky).plan(self.resize_after_s)


@dataclass(frozen=True, slots=True)
class Pri(Policy):
    """Preemptive priority, HYBRID without sticky slots (the paper's PRI). Options as for `Hybrid`."""

    seed: int = 0
    min_run_s: float = 600.0
    resize_after_s: float = 60.0
    goes_by: ClassVar[frozenset[JobImportance]] = frozenset({JobImportance.PRIORITY})

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """Apply the rule by priority."""
        return stays_by_urgency(job, waiting, self.min_run_s, now)

    def queue(self) -> Queue:
        """Order waiting jobs by priority, then by arrival."""
        return Queue(by_priority)

    def ranking(self, state: PoolState) -> Ranking:
        """Index the running jobs by start."""
        return Slots()

    def plan(self, snapshot: Snapshot) -> Plan:
        """Run the regular phase."""
        return _Pass(snapshot, self.seed, self.min_run_s).plan(self.resize_after_s)


@dataclass(frozen=True, slots=True)
class PriLimit(Policy):
    """Preemptive priority that drops a job that was preempted too often (the paper's PRI5).

    ``limit``: the number of preemptions at which a job is dropped (paper: 5). No work is thrown away here: a live job
    is suspended and held, with the reason. Other options as for `Hybrid`.
    """

    limit: int = 5
    seed: int = 0
    min_run_s: float = 600.0
    resize_after_s: float = 60.0
    goes_by: ClassVar[frozenset[JobImportance]] = frozenset({JobImportance.PRIORITY})

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"limit is at least 1, not {self.limit}")

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """Apply the rule by priority."""
        return stays_by_urgency(job, waiting, self.min_run_s, now)

    def queue(self) -> Queue:
        """Order waiting jobs by priority, then by arrival."""
        return Queue(by_priority)

    def ranking(self, state: PoolState) -> Ranking:
        """Index the running jobs by start."""
        return Slots()

    def plan(self, snapshot: Snapshot) -> Plan:
        """Run the regular phase with a limit."""
        return _Pass(snapshot, self.seed, self.min_run_s, limit=self.limit).plan(self.resize_after_s)


def by_priority(job: Job) -> QueueKey:
    """Order jobs by urgency, then by first arrival."""
    return (job.priority, job.sequence, job.gpus_min, job.gpus_max)


class _Pass:
    """One pass of the policy. ``sticky``: as for `Hybrid`, or 0; ``limit``: as for `PriLimit`, None for no limit."""

    def __init__(
        self, snapshot: Snapshot, seed: int, min_run_s: float, sticky: float = 0.0, limit: int | None = None
    ) -> None:
        self.draft = Draft(snapshot)
        self.slots: Slots = snapshot.ranking
        self.left = SlotsLeft(snapshot, self.slots, sticky)
        self.draft.may_have_room = self.left.suffice
        self.seed = seed
        self.min_run_s = min_run_s
        self.limit = limit

    def plan(self, resize_after_s: float) -> Plan:
        """Plan the pass."""
        fit_ranges(self.draft)
        self.left.hand_out(lambda job: self._place(job, "starting on a sticky slot", sticky=True))
        self._regular_phase(resize_after_s)
        grow(self.draft, resize_after_s)
        return self.draft.plan()

    # --- the regular phase (§3.2) ---

    def _regular_phase(self, resize_after_s: float) -> None:
        turns = self.draft.snapshot.queue.turns()
        for job in turns:
            if job.id in self.draft.placements:
                continue
            if not (self._admit(job, resize_after_s) or self._preempt_for(job)):
                self.draft.wait(job)
                if not holds_up(job, self.draft.snapshot.books):
                    turns.skip_demand()
                elif job.gpus_min:
                    return

    def _admit(self, job: Job, resize_after_s: float) -> bool:
        """Place ``job`` without preempting any job: where it can start now, else where room is being freed."""
        draft = self.draft
        if not self.left.suffice(job):
            return False
        if not (self._place(job, "starting") or draft.admit(job) or admit_by_shrinking(draft, job, resize_after_s)):
            return False
        self.left.use(job.gpus_min)
        return True

    def _place(self, job: Job, reason: str, sticky: bool = False) -> bool:
        find = partial(self.draft.trial.find, job, job.gpus_min, free_now=True)
        if job.gpus_min >= WHOLE and not self.draft.trial.is_gang(job):
            room = next(filter(None, (find([node]) for node in self._nodes(job))), None)
        else:  # a share of a GPU, or a gang over several nodes
            room = find()
        if room is not None:
            self.draft.place(job, room, reason, sticky=sticky)
        return room is not None

    def _nodes(self, job: Job) -> Iterator[NodeId]:
        """Return nodes to try for ``job``: the most powerful first for production, else in random order."""
        count = job.gpus_min // WHOLE
        levels = sorted((idle, nodes) for idle, nodes in self.draft.trial.room.idle.items() if idle >= count and nodes)
        if job.priority <= PRODUCTION:
            nodes = self.draft.snapshot.nodes
            return iter(sorted((id for _, ids in levels for id in ids), key=lambda id: weakness(nodes[id])))
        return self._drawn(job, levels)

    def _drawn(self, job: Job, levels: list[tuple[int, dict[NodeId, None]]]) -> Iterator[NodeId]:
        """Yield nodes in the order in which randomly drawn slots fall on them; ``levels`` group them by idle slots."""
        state = mix(self.seed, job.sequence, len(job.attempts))
        seen: set[NodeId] = set()
        while slots := sum([idle * len(ids) for idle, ids in levels]):
            node = _nth_slot(levels, state % slots)
            yield node
            seen.add(node)
            state = mix(state)
            levels = [(idle, {id: None for id in ids if id not in seen}) for idle, ids in levels]

    def _preempt_for(self, job: Job) -> bool:
        """Preempt less urgent jobs for ``job``; return False, with none preempted, if they cannot make room."""
        choice = self._choose(job) if job.gpus_min else None
        if choice is None:
            return False
        victims, _ = choice
        for victim in victims:
            if self.limit is not None and victim.running and victim.suspending.preemptions + 1 >= self.limit:
                self.draft.hold(victim, f"held: preempted {self.limit} times, the limit")
        self.left.use(job.gpus_min - self.left.of(victims))
        claim(self.draft, job, choice, f"preempted by job {job.id} of priority {job.priority}")
        return True

    def _choose(self, job: Job) -> Choice | None:
        """Return the first candidate if it suffices alone (paper); else the fewest on one node (of a gang: on any)."""
        gang = self.draft.trial.is_gang(job)
        for first in self._candidates(job):
            nodes = None if gang else nodes_of(first)
            # Without the quick check of `suffice`, because it would change the order in which slots are drawn.
            if makes_room(self.draft, job, [first], nodes):
                return [first], nodes
            break
        by_nodes: dict[Nodes, list[Job]] = {}
        for victim in self._candidates(job):
            for nodes in [None] if gang else [(node,) for node in nodes_of(victim)]:
                by_nodes.setdefault(nodes, []).append(victim)
        return cheapest_set(self.draft, job, by_nodes, len)

    def _candidates(self, job: Job) -> Iterator[Job]:
        """Yield the less urgent jobs on regular slots, the least urgent class first.

        Within a class the order is the paper's, except that jobs that never proved that they can suspend come last.
        """
        powerful = job.priority <= PRODUCTION
        for priority in sorted(self.slots.regular, reverse=True):
            if priority <= job.priority:
                return
            oldest_first = self.slots.regular[priority]
            candidates = (
                other
                for proved in (True, False)
                for _, _, other in reversed(oldest_first)
                if other.suspending.proved is proved and may_be_preempted(self.draft, other, self.min_run_s)
            )
            if powerful:
                nodes = self.draft.snapshot.nodes
                yield from sorted(candidates, key=lambda other: min(weakness(nodes[id]) for id in nodes_of(other)))
            else:
                yield from candidates


def _nth_slot(levels: list[tuple[int, dict[NodeId, None]]], slot: int) -> NodeId:
    """Return the node that has the ``slot``-th of all idle slots."""
    for idle, ids in levels:
        if slot < idle * len(ids):
            return next(islice(ids, slot // idle, None))
        slot -= idle * len(ids)
    raise IndexError(slot)
