"""FitGpp: preempt the best-effort job that costs least (Yabuuchi, Taniwaki and Omura, 2019; seed 000).

Score(j) = |D_j| / max |D| + s · GP_j / max GP over the running best-effort jobs (Eq. 1), where D is the demand for
CPUs, memory and GPUs relative to the node, in the L2 norm, and GP the grace period, or what a job was measured to need
of it. The victim is the job with the smallest score that alone makes enough room on its node and was preempted fewer
than P times (Eq. 2).

Where the paper is silent: room is checked per GPU, not by node sums. If no single job makes room, ``fallback`` says
whether to wait (Eq. 2 as written) or to preempt the cheapest set on one node of which every member is needed.
Best-effort jobs that only wait for room are displaced before any running one. Of jobs with equal scores, those that
never proved that they can suspend come last.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ebbtide_core.admission.queues import Queue
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, JobId
from ebbtide_core.planning.classes import admit_in_order, best_effort, by_class, may_be_preempted, stays_in_class
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.policy import Policy
from ebbtide_core.planning.preemption import Choice, Nodes, all_reach, cheapest_set, claim, reaches, suffice
from ebbtide_core.planning.staying import Stay
from ebbtide_core.resources.books import Books
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot

_Entry = tuple[float, bool, int, Job]
"""A job by its score; of equal ones, jobs that never proved that they can suspend come last, then later jobs."""

PAPER_S: Final = 4.0
"""The weight of the grace period against size in the paper."""


@dataclass(frozen=True, slots=True)
class FitGpp(Policy):
    """The policy's options.

    ``s``: weight of the grace period against size (paper: 4). ``p``: how often one job is preempted at most, none for
    unlimited (paper: 1; live, ``min_run_s`` bounds this instead). ``fallback``: ``multi`` or ``wait`` (paper).
    ``min_run_s``: a resumed job is spared for this long, in seconds, or ten times its restart cost if that is longer; 0
    spares no job (paper). ``resize_after_s``: as for `Fifo`.
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
        """Apply the rule by class, and keep a job that was preempted as often as ``p`` allows."""
        if self.p is not None and job.suspending.preemptions >= self.p and job.running and best_effort(job):
            return Stay(f"preempted {job.suspending.preemptions} times already, and p is {self.p}")
        return stays_in_class(job, waiting, self.min_run_s, now)

    def queue(self) -> Queue:
        """Order trial-and-error jobs before best-effort ones."""
        return Queue(by_class)

    def ranking(self, state: PoolState) -> Ranking:
        """Index the best-effort jobs by Eq. 1."""
        return Scores(self.s, state.books)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Admit trial-and-error jobs, by preemption if need be, then best-effort jobs in order, then grow."""
        draft = Draft(snapshot)
        # In the paper's setting, which spares no job, no job is moved either.
        admit_in_order(draft, self._preempt_for, self.resize_after_s, moves=self.min_run_s > 0)
        return draft.plan()

    def _preempt_for(self, draft: Draft, job: Job) -> bool:
        """Preempt the cheapest job that alone makes room for ``job``; if none does, act as ``fallback`` says."""
        choice = self._single(draft, job)
        if choice is None and self.fallback == "multi":
            choice = self._set(draft, job)
        if choice is None:
            return False
        claim(draft, job, choice, f"preempted by job {job.id}")
        return True

    def _candidates(self, draft: Draft, reach: Callable[[Job], bool]) -> Iterator[tuple[float, Job]]:
        """Yield the best-effort jobs that may be preempted now with their scores, the cheapest first.

        Those that do not pass the test ``reach`` (see `reaches`) are left out.
        """
        for cost, job in draft.snapshot.ranking:
            if not job.suspending.preemptions and not reach(job):
                continue  # it was never preempted, so there is no need to ask whether it is spared, and until when
            if draft.allocation(job) is None or not may_be_preempted(draft, job, self.min_run_s):
                continue
            if self.p is None or job.suspending.preemptions < self.p or not job.running:
                yield cost, job

    def _single(self, draft: Draft, job: Job) -> Choice | None:
        """Return the cheapest job that alone makes room on one of its nodes, or anywhere for a gang (Eq. 2)."""
        for _, victim in self._candidates(draft, reaches(draft, job)):
            for nodes in _where(draft, job, victim):
                if suffice(draft, job, [victim], nodes):
                    return [victim], nodes
        return None

    def _set(self, draft: Draft, job: Job) -> Choice | None:
        """Return the cheapest set of jobs on one node, or anywhere for a gang, of which each is needed."""
        costs: dict[JobId, float] = {}
        by_nodes: dict[Nodes, list[Job]] = {}
        for its_score, victim in self._candidates(draft, all_reach):
            costs[victim.id] = its_score
            for nodes in _where(draft, job, victim):
                by_nodes.setdefault(nodes, []).append(victim)
        enough = {nodes: victims for nodes, victims in by_nodes.items() if suffice(draft, job, victims, nodes)}

        def cost(victims: list[Job]) -> tuple[float, int]:
            return sum(costs[victim.id] for victim in victims), victims[0].sequence

        return cheapest_set(draft, job, enough, cost)


def _where(draft: Draft, job: Job, victim: Job) -> list[Nodes]:
    """Return where ``victim`` may make room for ``job``: on each of its nodes alone, or anywhere for a gang."""
    room = draft.allocation(victim)
    assert room is not None
    return [None] if draft.trial.is_gang(job) else [(node,) for node in room.node_ids]


def score(size: float, grace_s: float, largest: float, longest_s: float, s: float) -> float:
    """Return Score(j) = |D_j| / max |D| + s · GP_j / max GP, the cost of preempting job j.

    ``size`` is |D_j| and ``grace_s`` GP_j; ``largest`` and ``longest_s`` are the maxima over all jobs that could be
    preempted. Source: seed 000, §2.2, Eq. 1.
    """
    return size / largest + s * grace_s / longest_s


def size(room: Allocation, books: Books) -> float:
    """Return |D|: the norm of a job's CPUs, memory and GPUs, each relative to what its node has.

    Source: seed 000, §2.2, footnote 1; the paper does not say which norm, and this is the Euclidean one.
    """
    total = 0.0
    for piece in room.nodes:
        node = books.nodes[piece.node]
        if node.gpus:
            total += (piece.share / (len(node.gpus) * WHOLE)) ** 2
        if piece.cpus:
            total += (piece.cpus / node.facts.cpus) ** 2
        if piece.mem_bytes:
            total += (piece.mem_bytes / node.facts.mem_bytes) ** 2
    return math.sqrt(total)


def _grace_s(job: Job) -> float:
    """Return GP: the seconds in which ``job`` steps aside, measured or else its grace period; 0 before its start."""
    if not job.running:
        return 0.0
    return job.spec.grace_s if job.suspending.save_s is None else job.suspending.save_s


class _ScoreInputs(NamedTuple):
    """The inputs of a job's score, and whether the job has proved that it can suspend."""

    job: Job
    room: Allocation
    size: float
    grace_s: float
    proved: bool


class Scores:
    """The scores by Eq. 1 of every job with room that ``counts``, kept sorted.

    All scores change when the largest size or the longest grace period does; that is rare, and the next iteration then
    computes them again. Otherwise adding or removing a job costs a binary search.
    """

    def __init__(self, s: float, books: Books, counts: Callable[[Job], bool] = best_effort) -> None:
        self._s = s
        self._counts = counts
        self._books = books
        self._known: dict[JobId, _ScoreInputs] = {}
        self._sizes: list[float] = []
        self._graces: list[float] = []
        self._sorted: list[_Entry] = []
        self._largest = self._longest = 1.0
        """The denominators with which ``_sorted`` was computed."""

    def __iter__(self) -> Iterator[tuple[float, Job]]:
        """Yield scores and jobs, the cheapest first."""
        largest, longest = (self._sizes[-1], self._graces[-1]) if self._known else (0.0, 0.0)
        # If no job has a size, or none has a grace period, that term is 0 for all jobs.
        largest, longest = largest or 1.0, longest or 1.0
        if (largest, longest) != (self._largest, self._longest):
            self._largest, self._longest = largest, longest
            self._sorted = sorted(self._entry(known) for known in self._known.values())
        return ((cost, job) for cost, _, _, job in self._sorted)

    def update(self, job: Job) -> None:
        """Add, update or remove ``job`` according to its state."""
        room = job.planned if self._counts(job) else None
        known = self._known.get(job.id)
        if known is None and room is None:
            return
        grace_s = _grace_s(job) if room is not None else 0.0
        if known is not None:
            if known.room is room and known.grace_s == grace_s and known.proved is job.suspending.proved:
                return
            self._remove(known)
        if room is not None:
            self._add(_ScoreInputs(job, room, size(room, self._books), grace_s, job.suspending.proved))

    def _entry(self, known: _ScoreInputs) -> _Entry:
        cost = score(known.size, known.grace_s, self._largest, self._longest, self._s)
        return cost, not known.proved, known.job.sequence, known.job

    def _add(self, known: _ScoreInputs) -> None:
        self._known[known.job.id] = known
        insort(self._sizes, known.size)
        insort(self._graces, known.grace_s)
        insort(self._sorted, self._entry(known))

    def _remove(self, known: _ScoreInputs) -> None:
        del self._known[known.job.id]
        del self._sizes[bisect_left(self._sizes, known.size)]
        del self._graces[bisect_left(self._graces, known.grace_s)]
        del self._sorted[bisect_left(self._sorted, self._entry(known))]
