"""FitGpp: preempt the best-effort job that costs least (Yabuuchi, Taniwaki and Omura, 2019; seed 000).

Score(j) = |D_j| / max |D| + s · GP_j / max GP over the running best-effort jobs (Eq. 1), where D is the demand for
CPUs, memory and GPUs relative to the node, in the L2 norm, and GP the grace period. The victim is the job with the
smallest score that alone makes enough room on its node and was preempted fewer than P times (Eq. 2).

Where the paper is silent: room is checked per GPU, not by node sums. If no single job makes room, ``fallback`` says
whether to wait (Eq. 2 as written) or to preempt the cheapest set on one node of which every member is needed.
Best-effort jobs that only wait for room are displaced before any running one. Trial-and-error jobs wait in line
before all best-effort jobs, and while one waits, nobody grows into what it will need.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ebbtide_core.job import Job
from ebbtide_core.model import WHOLE, JobClass, NodeId
from ebbtide_core.policies.draft import Draft, count_text
from ebbtide_core.policies.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class FitGpp:
    """The policy's options.

    ``s``: weight of the grace period against size (paper: 4). ``p``: preemptions that one job suffers at most, none for
    unlimited (paper: 1; live, a protected time after each resume bounds them instead). ``fallback``: ``multi`` or
    ``wait`` (paper). ``resize_after_s``: as for `Fifo`.
    """

    s: float = 4.0
    p: int | None = None
    fallback: Literal["multi", "wait"] = "multi"
    resize_after_s: float = 60.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.s) and self.s >= 0):
            raise ValueError(f"s is at least 0, not {self.s}")

    def plan(self, snapshot: Snapshot) -> Plan:
        """Admit trial-and-error jobs, by preemption if need be, then best-effort jobs in order, then grow."""
        draft = Draft(snapshot)
        fit_ranges(draft)
        if self._admit_trials(draft):
            self._admit_best_effort(draft)
            grow(draft, self.resize_after_s)
        return draft.plan()

    def _admit_trials(self, draft: Draft) -> bool:
        """Place trial-and-error jobs in order; False if one has to wait."""
        for job in draft.snapshot.waiting(JobClass.TRIAL_AND_ERROR):
            if not (draft.admit(job) or admit_by_shrinking(draft, job, 0.0) or self._preempt_for(draft, job)):
                draft.wait(job)
                return False
        return True

    def _admit_best_effort(self, draft: Draft) -> None:
        for job in draft.snapshot.waiting(JobClass.BEST_EFFORT):
            if not (draft.admit(job) or admit_by_shrinking(draft, job, self.resize_after_s)):
                draft.wait(job)
                return

    def _preempt_for(self, draft: Draft, job: Job) -> bool:
        """Evict the victims that cost least and place ``job`` in their room."""
        scores = self._scores(draft)
        best = min(self._choices(draft, job, scores), key=lambda choice: choice[0], default=None)
        if best is None:
            return False
        for victim in best[1]:
            draft.evict(victim, f"preempted by job {job.id}", job.id)
        room = draft.trial.find(job, job.gpus_min, [best[2]])
        assert room is not None, f"preemption made no room for job {job.id}"
        names = ", ".join(victim.id for victim in best[1])
        draft.place(job, room, f"waiting for {count_text(job.gpus_min)} that job {names} is asked to free", claim=True)
        return True

    def _scores(self, draft: Draft) -> dict[str, float]:
        """Eq. 1 for every best-effort job with room; one that has not started has no grace period to wait for."""
        jobs = [job for job in draft.snapshot.planned() if _best_effort(job) and job.id not in draft.evictions]
        sizes = {job.id: _size(draft, job) for job in jobs}
        graces = {job.id: job.spec.grace_s if job.running else 0.0 for job in jobs}
        largest = max(sizes.values(), default=0.0) or 1.0
        longest = max(graces.values(), default=0.0) or 1.0
        return {job.id: sizes[job.id] / largest + self.s * graces[job.id] / longest for job in jobs}

    def _choices(
        self, draft: Draft, job: Job, scores: dict[str, float]
    ) -> Iterator[tuple[tuple[int, float, int], list[Job], NodeId]]:
        """Ways to make room: single victims first, then (with ``multi``) the cheapest minimal set of each node."""
        for node in draft.snapshot.nodes:
            candidates = sorted(self._candidates(draft, node), key=lambda victim: scores[victim.id])
            single = next((victim for victim in candidates if _makes_room(draft, job, [victim], node)), None)
            if single is not None:
                yield (0, scores[single.id], single.sequence), [single], node
            elif self.fallback == "multi" and (victims := _minimal_set(draft, job, candidates, node)):
                yield (1, sum(scores[victim.id] for victim in victims), victims[0].sequence), victims, node

    def _candidates(self, draft: Draft, node: NodeId) -> list[Job]:
        """Best-effort jobs of ``node`` that may be preempted now."""
        found = []
        for job in draft.planned_on(node):
            if not _best_effort(job) or not job.preemptible:
                continue
            if job.running and self.p is not None and job.preemptions >= self.p:
                continue
            if job.running and job.protected_until > draft.snapshot.now:
                draft.recheck(job.protected_until)
                continue
            found.append(job)
        return found


def _best_effort(job: Job) -> bool:
    return job.spec.job_class is JobClass.BEST_EFFORT


def _size(draft: Draft, job: Job) -> float:
    """|D|: the L2 norm of the job's demand relative to its node."""
    assert job.planned is not None
    total = 0.0
    for piece in job.planned:
        node = draft.snapshot.nodes.get(piece.node)
        if node is None:
            continue
        share = sum(gpu.share for gpu in piece.gpus)
        parts = (
            (share, len(node.gpus) * WHOLE),
            (piece.cpus, node.facts.cpus),
            (piece.mem_bytes, node.facts.mem_bytes),
        )
        total += sum((used / capacity) ** 2 for used, capacity in parts if capacity)
    return math.sqrt(total)


def _makes_room(draft: Draft, job: Job, victims: list[Job], node: NodeId) -> bool:
    """Whether ``job`` fits on ``node`` without ``victims``."""
    given = [allocation for victim in victims if (allocation := draft.allocation(victim)) is not None]
    for allocation in given:
        draft.trial.give(allocation)
    room = draft.trial.find(job, job.gpus_min, [node])
    for allocation in given:
        draft.trial.take(allocation)
    return room is not None


def _minimal_set(draft: Draft, job: Job, candidates: list[Job], node: NodeId) -> list[Job]:
    """The cheapest candidates that together make room, less those that turn out not to be needed."""
    if not _makes_room(draft, job, candidates, node):
        return []
    victims: list[Job] = []
    for candidate in candidates:
        victims.append(candidate)
        if _makes_room(draft, job, victims, node):
            break
    for victim in reversed(victims[:-1]):
        rest = [other for other in victims if other is not victim]
        if _makes_room(draft, job, rest, node):
            victims = rest
    return victims
