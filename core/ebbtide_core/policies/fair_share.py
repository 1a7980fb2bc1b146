"""Fair shares, as in Determined (seed 003): GPUs in proportion to demand and weight.

A group is the jobs that name the same one, else a job alone; or all jobs of a user. Its demand is the GPUs that its
waiting and running jobs ask for at most. All GPUs are divided in proportion to demand x weight; nobody gets more than
their demand, and what is over goes to the others. What runs and cannot be preempted is part of its group's share; where
it is more than that, the others divide what is left.

Where the seed is silent: shares are turned into whole jobs by the largest remainder, and the oldest group goes first
among equals. A small demand is not drowned by large ones: a group's share is at least its first job, if that is no more
than an equal share by weight. No job takes the place of another unless its group lacks more than the other's by at
least that whole job. Those whose turn it is not are preempted, the newest first, when their room is needed; and for a
job that has a share, but finds the free GPUs in pieces, so are smaller ones that came later. What the shares leave over
goes to any job that could be preempted again.
"""

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from typing import Literal

from ebbtide_core.job import Job
from ebbtide_core.model import WHOLE, JobId
from ebbtide_core.policies.draft import Draft, count_text
from ebbtide_core.policies.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.policies.groups import Group, Groups, faded
from ebbtide_core.policies.policy import Policy
from ebbtide_core.policies.rigid import by_arrival_and_size
from ebbtide_core.policies.victims import may_be_preempted, nodes_of, preempt
from ebbtide_core.queues import ShapedQueue, shape_of
from ebbtide_core.snapshot import Plan, Snapshot
from ebbtide_core.state import ClusterState, Ranking


@dataclass(frozen=True, slots=True)
class FairShare(Policy):
    """Weighted fair shares.

    ``per``: shares of groups, or of users. ``half_life_s``: with ``per=user``, weights are divided by 1 + the GPUs that
    the user had lately, an average in which what is this many seconds past counts half; none for no such memory.
    ``min_run_s``: as for `FitGpp`. ``resize_after_s``: as for `Fifo`.
    """

    per: Literal["group", "user"] = "group"
    half_life_s: float | None = None
    min_run_s: float = 600.0
    resize_after_s: float = 60.0

    def __post_init__(self) -> None:
        if self.half_life_s is not None and self.per != "user":
            raise ValueError("half_life_s is for per=user: a group has no past")
        if self.half_life_s is not None and not (math.isfinite(self.half_life_s) and self.half_life_s > 0):
            raise ValueError(f"half_life_s is more than 0, not {self.half_life_s}")

    def queue(self) -> ShapedQueue:
        """In order of arrival."""
        return ShapedQueue(by_arrival_and_size, _shape)

    def ranking(self, state: ClusterState) -> Ranking:
        """The jobs of each group."""
        return Groups(self.per, self.half_life_s)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Say who should run, and see to it."""
        draft = Draft(snapshot)
        fit_ranges(draft)
        turns = _Pass(self, draft)
        turns.start_without_gpus()
        turns.start_those_with_a_share()
        turns.fill()
        grow(draft, self.resize_after_s)
        return draft.plan()


@dataclass(frozen=True, slots=True)
class Step:
    """A size that a job may have: the ``parts`` more than before, and whether it ``has`` them already."""

    job: Job
    parts: int
    has: bool


@dataclass(slots=True, eq=False)
class Claim:
    """What a group may have in one pass, in parts: from ``least`` to ``demand``, of which ``left`` is not granted yet.

    ``bound`` is what it has that cannot be preempted.
    """

    group: Group
    weight: float
    demand: int
    bound: int
    least: int
    steps: Iterator[Step]
    left: int = 0
    granted: int = 0
    next: Step | None = None


def divide(capacity: int, claims: list[Claim]) -> None:
    """Set the shares of all: demand x weight x a common factor, but no more than the demand, nor less than least."""
    turns: list[tuple[float, float]] = []  # factors at which the slope of the sum of all shares changes, and how
    for claim in claims:
        slope = claim.demand * claim.weight
        turns += [(claim.least / slope, slope), (1 / claim.weight, -slope)]
    factor, slope, total = 0.0, 0.0, float(sum([claim.least for claim in claims]))
    for turn, change in sorted(turns):
        if total + slope * (turn - factor) >= capacity:
            factor += max(0.0, capacity - total) / slope if slope else 0.0
            break
        total += slope * (turn - factor)
        factor, slope = turn, slope + change
    for claim in claims:
        claim.left = max(claim.least, min(claim.demand, round(claim.demand * claim.weight * factor)))


class _Pass:
    """One pass: ``grants`` says who should run, and how large."""

    def __init__(self, policy: FairShare, draft: Draft) -> None:
        self.policy = policy
        self.draft = draft
        self.groups: Groups = draft.snapshot.ranking
        self.room = WHOLE * sum([len(node.slices) for node in draft.snapshot.nodes.values()])
        self.grants: dict[JobId, int] = {}
        self.newcomers: list[Job] = []
        """Those of them who wait, in the order in which they were granted theirs."""
        self._grant_all()

    def _grant_all(self) -> None:
        claims = self._claims()
        weights = sum([claim.weight for claim in claims])
        for claim in claims:
            first = claim.next
            if first is not None and first.parts * weights <= self.room * claim.weight:
                claim.least = max(claim.least, first.parts)
        divide(self.room, claims)
        for claim in claims:
            self._grant_bound(claim)
        self._grant_by_remainder(claims)
        for claim in claims:
            if claim.granted and claim.next and claim.next.job.queued is not None:
                reason = f"waiting: the jobs of its {self.policy.per} have their share of {count_text(claim.granted)}"
                self.draft.waits[claim.next.job.id] = reason

    def _claims(self) -> list[Claim]:
        claims = []
        for key, group in self.groups.groups.items():
            away = sum([job.gpus_max for _, job in group.with_room() if not self._is_here(job)])
            demand = sum(group.demand.values())
            if away == demand:
                continue
            weight = sum([weight * parts for weight, parts in group.demand.items()]) / demand
            bound = sum([_share(job) for _, job in group.with_room() if self._is_bound(job)])
            weight /= 1.0 + self._had_lately(key, group)
            least = min(bound, demand - away)
            claims.append(Claim(group, weight, demand - away, bound, least, self._steps(group)))
            claims[-1].next = next(claims[-1].steps, None)
        return claims

    def _is_here(self, job: Job) -> bool:
        """Whether no node of the room that is promised to ``job`` is away."""
        return all(node in self.draft.snapshot.nodes for node in nodes_of(job))

    def _is_bound(self, job: Job) -> bool:
        """Whether ``job`` runs and cannot be preempted."""
        return job.running and not job.preemptible and self._is_here(job)

    def _steps(self, group: Group) -> Iterator[Step]:
        """What the jobs may have that can be preempted: first the smallest size of each, then what they may grow."""
        elastic = []
        for _, job in group.jobs:
            if not self._is_bound(job) and self._is_here(job):
                yield Step(job, job.gpus_min, job.planned is not None)
                if job.elastic:
                    elastic.append(job)
        for job in elastic:
            has = _share(job)
            for smaller, larger in pairwise(job.sizes()):
                yield Step(job, larger - smaller, larger <= has)

    def _had_lately(self, user: str, group: Group) -> float:
        """The GPUs that ``user`` had on average, what they have now included."""
        half_life_s, now = self.policy.half_life_s, self.draft.snapshot.now
        if half_life_s is None:
            return 0.0
        past = self.groups.past.get(user)
        average = 0.0 if past is None else past.average * faded(now - past.at, half_life_s)
        for _, job in group.jobs:
            if (live := job.live) is not None:
                average += live.allocation.share / WHOLE * (1.0 - faded(now - live.placed, half_life_s))
        return average

    def _grant_bound(self, claim: Claim) -> None:
        for _, job in claim.group.with_room():
            if self._is_bound(job):
                self.grants[job.id] = _share(job)
        self.room -= claim.bound
        claim.left -= claim.bound
        claim.granted = claim.bound

    def _grant_by_remainder(self, claims: list[Claim]) -> None:
        """Give what is left to the group with most of its share left, again and again.

        A job that runs counts as much more as it takes: it stays, unless another group lacks more by the whole job.
        """
        heap = [_by_remainder(claim, claim.next) for claim in claims if claim.next] if self.room > 0 else []
        heapify(heap)
        while heap and self.room > 0:
            claim = heap[0][-1]
            step = claim.next
            assert step is not None
            for_ever = claim.left <= 0 and not step.job.preemptible
            if for_ever or not self._grant(claim, step) or claim.next is None:
                heappop(heap)
            else:
                heapreplace(heap, _by_remainder(claim, claim.next))

    def _grant(self, claim: Claim, step: Step) -> bool:
        """Grant the next step of ``claim`` if there is room."""
        if step.parts > self.room:
            return False
        if step.job.id not in self.grants and step.job.queued is not None:
            self.newcomers.append(step.job)
        self.grants[step.job.id] = self.grants.get(step.job.id, 0) + step.parts
        self.room -= step.parts
        claim.left -= step.parts
        claim.granted += step.parts
        claim.next = next(claim.steps, None)
        return True

    # --- and how they get there ---

    def start_without_gpus(self) -> None:
        """Start jobs without GPUs in the order in which they came."""
        for _, job in self.groups.without_gpus:
            if not self.draft.admit(job):
                self.draft.wait(job)
                return

    def start_those_with_a_share(self) -> None:
        """Place all who wait and should run: where there is room, else where others have more than they should."""
        for job in self.newcomers:
            if not (self.draft.admit(job) or self._shrink_for(job) or self._preempt_for(job)):
                self.draft.wait(job)

    def _shrink_for(self, job: Job) -> bool:
        surplus = [
            other
            for other in self.draft.elastic()
            if (room := self.draft.allocation(other)) and room.share > self.grants.get(other.id, 0)
        ]
        return bool(surplus) and admit_by_shrinking(self.draft, job, self.policy.resize_after_s, surplus)

    def _preempt_for(self, job: Job) -> bool:
        """Take the place of jobs that should not run, the newest first; else of smaller ones that came later."""
        draft, min_run_s = self.draft, self.policy.min_run_s
        others = sorted(
            ((stand, other) for group in self.groups.groups.values() for stand, other in group.with_room()),
            reverse=True,
        )
        allowed = [other for _, other in others if may_be_preempted(draft, other, min_run_s)]
        over = [other for other in allowed if other.id not in self.grants]
        later = [other for other in allowed if other.id in self.grants and other.sequence > job.sequence]
        smaller = [other for other in later if _share(other) <= job.gpus_min]
        return preempt(draft, job, [over, smaller], f"preempted by job {job.id}, to which this share belongs")

    def fill(self) -> None:
        """Start whoever fits into what is left, and could be preempted again."""
        queue = self.draft.snapshot.queue
        assert isinstance(queue, ShapedQueue)
        elastic = self.draft.elastic()
        kept = sum([max(0, self.grants.get(job.id, 0) - _allotted(self.draft, job)) for job in elastic])
        queue.first_fit(self._fill_with, lambda: self.draft.trial.most - kept)

    def _fill_with(self, job: Job) -> bool:
        if job.id in self.draft.placements:
            return True
        if not job.gpus_min or not job.preemptible or job.id in self.grants or not self.draft.admit(job):
            return False
        self.draft.waits.pop(job.id, None)
        return True


def _by_remainder(claim: Claim, step: Step) -> tuple[int, bool, int, Claim]:
    return (-claim.left - (step.parts if step.has else 0), step.has, claim.group.number, claim)


def _share(job: Job) -> int:
    return job.planned.share if job.planned is not None else 0


def _allotted(draft: Draft, job: Job) -> int:
    allocation = draft.allocation(job)
    return allocation.share if allocation is not None else 0


def _shape(job: Job) -> Hashable:
    return (shape_of(job), job.preemptible)
