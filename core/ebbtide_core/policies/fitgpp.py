"""FitGpp: preempt the best-effort job that costs least (Yabuuchi, Taniwaki and Omura, 2019; seed 000).

Score(j) = |D_j| / max |D| + s · GP_j / max GP over the running best-effort jobs (Eq. 1), where D is the demand for
CPUs, memory and GPUs relative to the node, in the L2 norm, and GP the grace period, or what a job was measured to need
of it. The victim is the job with the smallest score that alone makes enough room on its node and was preempted fewer
than P times (Eq. 2).

Where the paper is silent: room is checked per GPU, not by node sums. If no single job makes room, ``fallback`` says
whether to wait (Eq. 2 as written) or to preempt the cheapest set on one node of which every member is needed.
Best-effort jobs that only wait for room are displaced before any running one. Of equal scores, those that never proved
that they can suspend come last.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ebbtide_core.admission.queues import Queue
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, JobId, NodeId
from ebbtide_core.policies.classes import admit_in_order, best_effort, by_class, may_be_preempted, stays_in_class
from ebbtide_core.policies.draft import Draft, count_text
from ebbtide_core.policies.policy import Policy
from ebbtide_core.policies.staying import Stay
from ebbtide_core.policies.victims import could_make_room, makes_room, minimal_set
from ebbtide_core.resources.books import Books
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot

Choice = tuple[list[Job], list[NodeId] | None]
"""Who has to go, and where there is room then; on any nodes if None."""
_Known = tuple[Job, Allocation, float, float, bool]
"""A job, its room, the size of that, its grace period, and whether it has proved that it can suspend."""
_Entry = tuple[float, bool, int, Job]

PAPER_S: Final = 4.0
"""The weight of the grace period against size in the paper."""


@dataclass(frozen=True, slots=True)
class FitGpp(Policy):
    """The policy's options.

    ``s``: weight of the grace period against size (paper: 4). ``p``: preemptions that one job suffers at most, none for
    unlimited (paper: 1; live, ``min_run_s`` bounds them instead). ``fallback``: ``multi`` or ``wait`` (paper).
    ``min_run_s``: a resumed job is spared for this long, in seconds, or ten times its restart cost if that is longer; 0
    spares nobody (paper). ``resize_after_s``: as for `Fifo`.
    """

    s: float = PAPER_S
    p: int | None = None
    fallback: Literal["multi", "wait"] = "multi"
    min_run_s: float = 600.0
    resize_after_s: float = 60.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.s) and self.s >= 0):
            raise ValueError(f"s is at least 0, not {self.s}")

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """As for its class; and one that was preempted as often as ``p`` allows."""
        if self.p is not None and job.preemptions >= self.p and job.running and best_effort(job):
            return Stay(f"preempted {job.preemptions} times already, and p is {self.p}")
        return stays_in_class(job, waiting, self.min_run_s, now)

    def queue(self) -> Queue:
        """Trial-and-error jobs first."""
        return Queue(by_class)

    def ranking(self, state: PoolState) -> Ranking:
        """The best-effort jobs by Eq. 1."""
        return Scores(self.s, state.books)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Admit trial-and-error jobs, by preemption if need be, then best-effort jobs in order, then grow."""
        draft = Draft(snapshot)
        # In the paper's setting, which spares nobody, nobody is moved either.
        admit_in_order(draft, self._preempt_for, self.resize_after_s, moves=self.min_run_s > 0)
        return draft.plan()

    def _preempt_for(self, draft: Draft, job: Job) -> bool:
        """Evict the victims that cost least and place ``job`` in their room."""
        choice = self._gang_set(draft, job) if draft.trial.is_gang(job) else self._single(draft, job)
        if choice is None and self.fallback == "multi":
            choice = self._cheapest_set(draft, job)
        if choice is None:
            return False
        victims, nodes = choice
        for victim in victims:
            draft.evict(victim, f"preempted by job {job.id}", job.id)
        room = draft.trial.find(job, job.gpus_min, nodes)
        assert room is not None, f"preemption made no room for job {job.id}"
        names = ", ".join(victim.id for victim in victims)
        draft.place(job, room, f"waiting for {count_text(job.gpus_min)} that job {names} is asked to free", claim=True)
        return True

    def _candidates(self, draft: Draft) -> Iterator[tuple[float, Job, Allocation]]:
        """The best-effort jobs that may be preempted now, the cheapest first."""
        for score, job in draft.snapshot.ranking:
            allocation = draft.allocation(job)
            if allocation is None or not may_be_preempted(draft, job, self.min_run_s):
                continue
            if self.p is None or job.preemptions < self.p or not job.running:
                yield score, job, allocation

    def _gang_set(self, draft: Draft, job: Job) -> Choice | None:
        """The cheapest jobs, on any nodes, of which each is needed; a single one if ``fallback`` is to wait."""
        candidates = [victim for _, victim, _ in self._candidates(draft)]
        for victim in candidates:
            if makes_room(draft, job, [victim], None):
                return [victim], None
        victims = minimal_set(draft, job, candidates, None) if self.fallback == "multi" else []
        return (victims, None) if victims else None

    def _single(self, draft: Draft, job: Job) -> Choice | None:
        """Eq. 2: the cheapest job that alone makes room."""
        for _, victim, allocation in self._candidates(draft):
            for node in allocation.node_ids:
                if could_make_room(draft, job, [allocation], node) and makes_room(draft, job, [victim], [node]):
                    return [victim], [node]
        return None

    def _cheapest_set(self, draft: Draft, job: Job) -> Choice | None:
        """The cheapest minimal set of jobs on one node that together make room."""
        by_node: dict[NodeId, list[tuple[float, Job, Allocation]]] = {}
        for candidate in self._candidates(draft):
            for node in candidate[2].node_ids:
                by_node.setdefault(node, []).append(candidate)
        best: tuple[float, int, list[Job], NodeId] | None = None
        for node, candidates in by_node.items():
            if not could_make_room(draft, job, [allocation for _, _, allocation in candidates], node):
                continue
            victims = minimal_set(draft, job, [victim for _, victim, _ in candidates], [node])
            if victims:
                chosen = {victim.id for victim in victims}
                cost = sum(score for score, victim, _ in candidates if victim.id in chosen)
                if best is None or (cost, victims[0].sequence) < best[:2]:
                    best = (cost, victims[0].sequence, victims, node)
        return None if best is None else (best[2], [best[3]])


class Scores:
    """Eq. 1 for every job with room that ``counts``, kept sorted.

    All scores change when the largest size or the longest grace period does; that is rare, and they are computed again
    when next asked for. Otherwise a job that comes or goes costs a binary search.
    """

    def __init__(self, s: float, books: Books, counts: Callable[[Job], bool] = best_effort) -> None:
        self._s = s
        self._counts = counts
        self._books = books
        self._known: dict[JobId, _Known] = {}
        self._sizes: list[float] = []
        self._graces: list[float] = []
        self._sorted: list[_Entry] = []
        self._scale = (1.0, 1.0)

    def update(self, job: Job) -> None:
        """Take ``job`` in, or out."""
        planned = job.planned if self._counts(job) else None
        known = self._known.get(job.id)
        if known is None and planned is None:
            return
        # One that has not started has no grace period to wait for.
        grace = 0.0
        if planned is not None and job.running:
            grace = job.spec.grace_s if job.save_s is None else job.save_s
        if known is not None:
            if known[1] is planned and known[3] == grace and known[4] is job.proved:
                return
            self._remove(known)
        if planned is not None:
            self._add((job, planned, size(planned, self._books), grace, job.proved))

    def __iter__(self) -> Iterator[tuple[float, Job]]:
        """Scores and jobs, the cheapest first."""
        scale = self._scale_now()
        if scale != self._scale:
            self._scale = scale
            self._sorted = sorted(self._entry(known) for known in self._known.values())
        return ((entry[0], entry[3]) for entry in self._sorted)

    def _scale_now(self) -> tuple[float, float]:
        return (self._sizes[-1] if self._sizes else 0.0) or 1.0, (self._graces[-1] if self._graces else 0.0) or 1.0

    def _entry(self, known: _Known) -> _Entry:
        job, _, length, grace, proved = known
        return length / self._scale[0] + self._s * grace / self._scale[1], not proved, job.sequence, job

    def _add(self, known: _Known) -> None:
        self._known[known[0].id] = known
        insort(self._sizes, known[2])
        insort(self._graces, known[3])
        insort(self._sorted, self._entry(known))

    def _remove(self, known: _Known) -> None:
        del self._known[known[0].id]
        del self._sizes[bisect_left(self._sizes, known[2])]
        del self._graces[bisect_left(self._graces, known[3])]
        del self._sorted[bisect_left(self._sorted, self._entry(known))]


def size(allocation: Allocation, books: Books) -> float:
    """|D|: the L2 norm of a job's demand, each part relative to what its node has."""
    total = 0.0
    for piece in allocation.nodes:
        node = books.nodes[piece.node]
        if node.gpus:
            total += (piece.share / (len(node.gpus) * WHOLE)) ** 2
        if piece.cpus:
            total += (piece.cpus / node.facts.cpus) ** 2
        if piece.mem_bytes:
            total += (piece.mem_bytes / node.facts.mem_bytes) ** 2
    return math.sqrt(total)
