"""Fair shares, as in Determined (seed 003): GPUs in proportion to demand and weight.

A group is all jobs with the same group name, a job without a group name, or all jobs of a user. Its demand is the
GPUs that its waiting and running jobs ask for at most. All GPUs are divided in proportion to demand x weight; no group
gets more than its demand, and the surplus goes to the other groups. Running jobs that cannot be preempted count towards
their group's share; where they exceed it, the other groups divide what is left.

Where the seed is silent: shares are turned into whole jobs by the largest remainder, in terms of each group's next job;
among equals the oldest group goes first. So that large demands do not crowd out a small one, a group's share is at
least its first job, if that is no more than an equal share by weight. A job takes the place of another only if its
group lacks more than the other's by a whole job, with one exception: smaller jobs may pass a job that is too large for
the free GPUs if its group has no other job, but they give way once it would fit without the jobs whose turn is later
(`Turn`). Jobs that should not run are preempted, the newest first, when their room is needed; if the free GPUs are
scattered, smaller jobs whose turn is later are preempted too. What the shares leave over goes to any job that could be
preempted again.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice, pairwise
from typing import ClassVar, Final, Literal

from ebbtide_core.admission.queues import DemandQueue, by_arrival, demand_of
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, JobId
from ebbtide_core.policies.defragment import defragment
from ebbtide_core.policies.draft import Draft, count_text
from ebbtide_core.policies.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.policies.groups import BOUND, Groups, ShareGroup, faded
from ebbtide_core.policies.policy import JobImportance, Policy
from ebbtide_core.policies.preemption import choose, may_be_preempted, nodes_of
from ebbtide_core.policies.preemption import claim as claim_room
from ebbtide_core.policies.staying import Stay, stays_by_itself
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot

SAME: Final = 9
"""Shares that agree to this many decimal places count as equal."""
LOOK_AHEAD: Final = 32
"""How many further jobs of a group are tried when its next job is too large."""
Turn = tuple[int, float, int]
"""A group's rank; the lower one need not give way: it lacks more jobs (rounded up), is heavier, or is older."""


@dataclass(frozen=True, slots=True)
class FairShare(Policy):
    """Weighted fair shares.

    ``per``: whether groups or users get shares. ``half_life_s``: with ``per=user``, weights are divided by 1 + the GPUs
    that the user had lately, an average in which use this many seconds ago counts half; None ignores past use.
    ``min_run_s``: as for `FitGpp`. ``resize_after_s``: as for `Fifo`.
    """

    per: Literal["group", "user"] = "group"
    half_life_s: float | None = None
    min_run_s: float = 600.0
    resize_after_s: float = 60.0
    goes_by: ClassVar[frozenset[JobImportance]] = frozenset({JobImportance.WEIGHT})

    def __post_init__(self) -> None:
        if self.half_life_s is not None and self.per != "user":
            raise ValueError("half_life_s is for per=user: a group has no past")
        if self.half_life_s is not None and not (math.isfinite(self.half_life_s) and self.half_life_s > 0):
            raise ValueError(f"half_life_s is more than 0, not {self.half_life_s}")

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """Apply only the rules of the job itself; whether its group has more than its share is not decided here."""
        return stays_by_itself(job, self.min_run_s, now)

    def queue(self) -> DemandQueue:
        """Order waiting jobs by arrival."""
        return DemandQueue(by_arrival, _demand)

    def ranking(self, state: PoolState) -> Ranking:
        """Index the jobs by group."""
        return Groups(self.per, self.half_life_s)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Divide the GPUs among the groups, then start and preempt jobs accordingly."""
        draft = Draft(snapshot)
        fit_ranges(draft)
        turns = _Pass(self, draft)
        turns.start_without_gpus()
        turns.start_those_with_a_share()
        turns.fill()
        grow(draft, self.resize_after_s)
        return draft.plan()


@dataclass(frozen=True, slots=True)
class SizeStep:
    """One step in a job's size: ``parts`` are added, and ``has`` says whether the job has them already.

    By such a step a job starts, or ``grows`` if that is set.
    """

    job: Job
    parts: int
    has: bool
    grows: bool


@dataclass(slots=True, eq=False)
class ShareClaim:
    """What a group may have in one pass, in parts: from ``least`` to ``demand``; ``left`` is not granted yet.

    ``bound`` is what the group's jobs have that cannot be preempted. A claim stands for ``count`` groups of one kind:
    for the oldest group until that has its first job or cannot have it, then for the ``others``.
    """

    group: ShareGroup
    weight: float
    demand: int
    bound: int
    least: int
    steps: Iterator[SizeStep]
    count: int = 1
    others: Iterator[tuple[int, ShareGroup]] | None = None
    left: float = 0.0
    granted: int = 0
    next: SizeStep | None = None


def divide(capacity: int, claims: list[ShareClaim]) -> None:
    """Set each claim's share: demand x weight x a common factor, at most its demand, and at least its ``least``."""
    factor = common_factor(capacity, claims, [claim.least for claim in claims])
    for claim in claims:
        claim.left = _share_by(factor, claim, claim.least)


def _share_by(factor: float, claim: ShareClaim, least: int) -> float:
    return max(least, min(claim.demand, claim.demand * claim.weight * factor))


def common_factor(capacity: int, claims: list[ShareClaim], leasts: list[int]) -> float:
    """Return the factor of demand x weight with which the shares, at least ``leasts``, fill ``capacity``."""
    turns: list[tuple[float, float]] = []  # factors at which the slope of the sum of all shares changes, and how
    for claim, least in zip(claims, leasts, strict=True):
        slope = claim.demand * claim.weight
        turns += [(least / slope, slope * claim.count), (1 / claim.weight, -slope * claim.count)]
    least_of_all = sum([claim.count * least for claim, least in zip(claims, leasts, strict=True)])
    factor, slope, total = 0.0, 0.0, float(least_of_all)
    for turn, change in sorted(turns):
        if total + slope * (turn - factor) >= capacity:
            return factor + (max(0.0, capacity - total) / slope if slope else 0.0)
        total += slope * (turn - factor)
        factor, slope = turn, slope + change
    return factor


@dataclass(frozen=True, slots=True)
class _Balance:
    """How fairly GPUs are shared: which parts of its share each group has, with all jobs at their smallest size.

    A part is ranked by what its group would lack without it, in terms of the group's smallest job and rounded up, then
    by weight and age, as in `Turn`. Of two divisions of the GPUs, the fairer one has the first part in which they
    differ; if the groups have the same in both, the one with the oldest job is fairer. This is an order, because
    neither the shares nor the ranks depend on which jobs run. So a policy that preempts only for a fairer division
    does not preempt forever.
    """

    groups: Groups
    shares: Mapping[str, tuple[ShareClaim, float]]
    has: Counter[str]
    units: dict[str, int] = field(default_factory=dict)

    def is_fairer(self, job: Job, victims: list[Job]) -> bool:
        """Return whether it is fairer that ``job`` runs instead of ``victims``."""
        own, more = self.groups.key(job), Counter[str]()
        more[own] += job.gpus_min
        for victim in victims:
            more[self.groups.key(victim)] -= victim.gpus_min
        lost = [self._rank(key, self.has[key] + parts) for key, parts in more.items() if parts < 0]
        if more[own] > 0:
            return all(self._rank(own, self.has[own]) < rank for rank in lost)
        return not lost and all(job.sequence < victim.sequence for victim in victims)

    def _rank(self, key: str, parts: int) -> Turn:
        """Return the rank of the next part of a group that has ``parts``."""
        claim, share = self.shares[key]
        if key not in self.units:
            self.units[key] = min(job.gpus_min for _, job in claim.group.jobs)
        return _rank(claim, share - parts, self.units[key])


class _Pass:
    """One pass of the policy: ``grants`` maps the jobs that should run to their sizes, in parts."""

    def __init__(self, policy: FairShare, draft: Draft) -> None:
        self.policy = policy
        self.draft = draft
        self.groups: Groups = draft.snapshot.ranking
        nodes = draft.snapshot.nodes
        self.capacity = self.room = WHOLE * sum([len(node.slices) for node in nodes.values()])
        self.all_here = len(nodes) == len(draft.snapshot.books.nodes)
        self.grants: dict[JobId, int] = {}
        self.newcomers: list[Job] = []
        """The waiting jobs among ``grants``, in the order in which they were granted their room."""
        self.turns: dict[JobId, tuple[Turn, SizeStep]] = {}
        """The turns and first steps of the granted jobs that may have to give way to others."""
        self.claims: list[ShareClaim] = []
        """The claims among which the GPUs are divided; they stand for all groups."""
        self.others: list[ShareClaim] = []
        """The claims that `_other` made for further groups of a kind."""
        self.weights = 0.0
        """The sum of the weights of all groups."""
        self.shares: dict[str, tuple[ShareClaim, float]] = {}
        """The `_lasting_shares`, computed when first needed."""
        self._grant_all()

    def _grant_all(self) -> None:
        claims = self._claims()
        self.weights = sum([claim.weight * claim.count for claim in claims])
        for claim in claims:
            if claim.next is not None:
                claim.least = max(claim.least, self._least(claim, claim.next.parts))
        divide(self.room, claims)
        self.claims = [*claims]
        for claim in claims:
            self._grant_bound(claim)
        self._grant_by_remainder(claims)
        self._give_way(claims)
        for claim in claims:
            if claim.granted and claim.next and claim.next.job.queued is not None:
                reason = f"waiting: the jobs of its {self.policy.per} have their share of {count_text(claim.granted)}"
                self.draft.waits[claim.next.job.id] = reason

    def _least(self, claim: ShareClaim, first: int) -> int:
        """Return the least share of a group whose first job needs ``first``; 0 if that exceeds an equal share."""
        return first if first * self.weights <= self.capacity * claim.weight else 0

    def _claims(self) -> list[ShareClaim]:
        """Return the claims of all groups; groups of one kind without room share one if past use is ignored."""
        groups = self.groups
        claims = [claim for group in groups.with_room.values() if (claim := self._claim(group)) is not None]
        for waiting in groups.waiting.values():
            if self.policy.half_life_s is not None:
                claims += [claim for _, group in waiting if (claim := self._claim(group)) is not None]
            elif (claim := self._claim(waiting[0][1])) is not None:
                claim.count, claim.others = len(waiting), islice(waiting, 1, None)
                claims.append(claim)
        return claims

    def _claim(self, group: ShareGroup) -> ShareClaim | None:
        """Return what ``group`` may have; None if all of its jobs are on nodes that are away."""
        bound, demand = 0, sum(group.demand.values())
        weight = sum([weight * parts for weight, parts in group.demand.items()]) / demand
        here = demand
        for (where, _, _), job in group.with_room():
            if not self._is_here(job):
                here -= job.gpus_max
            elif where == BOUND:
                bound += _share(job)
        if not here:
            return None
        weight /= 1.0 + self._had_lately(group)
        claim = ShareClaim(group, weight, here, bound, min(bound, here), self._steps(group))
        claim.next = next(claim.steps, None)
        return claim

    def _is_here(self, job: Job) -> bool:
        """Return whether all nodes of the room promised to ``job`` are connected."""
        return self.all_here or all(node in self.draft.snapshot.nodes for node in nodes_of(job))

    def _steps(self, group: ShareGroup) -> Iterator[SizeStep]:
        """Yield the steps of the jobs that can be preempted: first each one's smallest size, then their growth."""
        elastic = []
        for (where, _, _), job in group.jobs:
            if where != BOUND and self._is_here(job):
                yield SizeStep(job, job.gpus_min, job.planned is not None, grows=False)
                if job.elastic:
                    elastic.append(job)
        for job in elastic:
            has = _share(job)
            for smaller, larger in pairwise(job.sizes()):
                yield SizeStep(job, larger - smaller, larger <= has, grows=True)

    def _had_lately(self, group: ShareGroup) -> float:
        """Return the average number of GPUs that the user had lately, present ones included."""
        half_life_s, now = self.policy.half_life_s, self.draft.snapshot.now
        if half_life_s is None:
            return 0.0
        past = self.groups.past.get(group.key)
        average = 0.0 if past is None else past.average * faded(now - past.at, half_life_s)
        for _, job in group.jobs:
            if (live := job.live) is not None:
                average += live.allocation.share / WHOLE * (1.0 - faded(now - live.placed, half_life_s))
        return average

    def _grant_bound(self, claim: ShareClaim) -> None:
        for (where, _, _), job in claim.group.with_room() if claim.bound else ():
            if where == BOUND and self._is_here(job):
                self.grants[job.id] = _share(job)
        self.room -= claim.bound
        claim.left -= claim.bound
        claim.granted = claim.bound

    def _grant_by_remainder(self, claims: list[ShareClaim]) -> None:
        """Repeatedly grant the next step of the group that lacks most of its share, in terms of its next job.

        A running job counts as one more job lacked, so it stays unless another group lacks more by a whole job.
        """
        heap = [_by_remainder(claim, claim.next) for claim in claims if claim.next] if self.room > 0 else []
        heapify(heap)
        while heap and self.room > 0:
            claim = heap[0][-1]
            step, left, first = claim.next, claim.left, not claim.granted
            assert step is not None
            turn = _turn(claim, step)
            if (left <= 0.0 and not step.job.preemptible) or not self._grant(claim, step):
                if 0.0 < left < step.parts and self._passes_over(claim):
                    heapreplace(heap, _by_remainder(claim, _first(claim)))
                else:
                    heappop(heap)
                continue
            if step.job.preemptible or not step.has:
                self.turns.setdefault(step.job.id, (turn, step))
            if claim.next is None:
                heappop(heap)
            else:
                heapreplace(heap, _by_remainder(claim, claim.next))
            if first and (other := self._other(claim, left)) is not None:
                claims.append(other)
                heappush(heap, _by_remainder(other, _first(other)))

    def _passes_over(self, claim: ShareClaim) -> bool:
        """Skip the group's next job, which is too large, for a later one that fits and can be preempted."""
        for step in islice(claim.steps, LOOK_AHEAD):
            if not self._is_premature(step) and step.job.preemptible and step.parts <= self.room:
                if (passed := _first(claim).job).queued is not None:
                    reason = f"waiting: larger than what is left of the share of its {self.policy.per}"
                    self.draft.waits[passed.id] = reason
                claim.next = step
                return True
        return False

    def _give_way(self, claims: list[ShareClaim]) -> None:
        """Revoke grants of smaller jobs for the first job of a group whose turn comes before theirs."""
        smallest = min([step.parts for _, step in self.turns.values()], default=0)
        passed = [
            (_turn(claim, first), claim)
            for claim in claims
            if (first := claim.next)
            and (not claim.granted or claim.left >= first.parts)
            and claim.left > 0 < smallest < first.parts
        ]
        heapify(passed)
        while passed:
            turn, claim = heappop(passed)
            left = claim.left
            if self._takes_turn(turn, claim) and (other := self._other(claim, left)) is not None:
                heappush(passed, (_turn(other, _first(other)), other))

    def _takes_turn(self, turn: Turn, claim: ShareClaim) -> bool:
        """Grant the first step of ``claim`` instead of smaller, later ones; return False if it still does not fit."""
        first = _first(claim)
        if self._is_premature(first):
            return False
        smaller = [entry for entry in self.turns.values() if entry[0] > turn and entry[1].parts < first.parts]
        if self.room + sum([self.grants[step.job.id] for _, step in smaller]) < first.parts:
            return False
        self._revoke(sorted(smaller, key=_when, reverse=True), first.parts)
        self.turns[first.job.id] = turn, first
        return self._grant(claim, first)

    def _is_premature(self, step: SizeStep) -> bool:
        """Return whether ``step`` would grow a job whose smallest size is not granted, or no longer."""
        return step.grows and step.job.id not in self.grants

    def _revoke(self, entries: list[tuple[Turn, SizeStep]], parts: int) -> None:
        """Revoke grants from the first of ``entries`` on until ``parts`` fit, then restore those not needed."""
        revoked = []
        for entry in entries:
            if self.room < parts:
                revoked.append(entry[1].job.id)
                self.room += self.grants[entry[1].job.id]
        for id in reversed(revoked):
            if self.room - self.grants[id] >= parts:
                self.room -= self.grants[id]
            else:
                del self.grants[id], self.turns[id]

    def _other(self, claim: ShareClaim, left: float) -> ShareClaim | None:
        """Return the claim of the next oldest group of the same kind, with the same share; None if there is none."""
        _, group = next(claim.others or iter(()), (0, None))
        if group is None:
            return None
        other = replace(claim, group=group, steps=self._steps(group), left=left, granted=0)
        other.next = next(other.steps)
        self.others.append(other)
        return other

    def _grant(self, claim: ShareClaim, step: SizeStep) -> bool:
        """Grant the next step of ``claim``; return False if there is no room."""
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

    # --- carrying out the grants ---

    def start_without_gpus(self) -> None:
        """Start jobs without GPUs in order of arrival."""
        for _, job in self.groups.without_gpus:
            if not self.draft.admit(job):
                self.draft.wait(job)
                return

    def start_those_with_a_share(self) -> None:
        """Place all waiting jobs that have a grant: where there is room, else where others have too much."""
        first = True
        for job in self.newcomers:
            if job.id not in self.grants or self.draft.admit(job) or self._shrink_for(job) or self._preempt_for(job):
                continue
            if not (first and defragment(self.draft, job, self.policy.resize_after_s)):
                self.draft.wait(job)
                first = False

    def _shrink_for(self, job: Job) -> bool:
        surplus = [
            other
            for other in self.draft.elastic()
            if (room := self.draft.allocation(other)) and room.share > self.grants.get(other.id, 0)
        ]
        if not surplus or not admit_by_shrinking(self.draft, job, self.policy.resize_after_s, surplus):
            return False
        for other in surplus:
            self._give_back(other)
        return True

    def _give_back(self, job: Job) -> None:
        """Let ``job``, which shrank to its smallest size, keep its grant, because only its surplus is for others."""
        draft, share, room = self.draft, self.grants.get(job.id, 0), self.draft.allocation(job)
        if room is None or room.share >= share:
            return
        draft.trial.give(room)
        larger = draft.trial.find(job, share, room.node_ids)
        draft.trial.take(room)
        if larger is not None:
            draft.place(job, larger, draft.placements[job.id].reason, claim=True)

    def _preempt_for(self, job: Job) -> bool:
        """Preempt jobs without a grant for ``job``, the newest first; else smaller jobs whose turn is later."""
        draft, min_run_s = self.draft, self.policy.min_run_s
        others = sorted(
            ((stand, other) for group in self.groups.with_room.values() for stand, other in group.with_room()),
            reverse=True,
        )
        allowed = [other for _, other in others if may_be_preempted(draft, other, min_run_s)]
        over = [other for other in allowed if other.id not in self.grants]
        later = [other for other in allowed if self._is_later(other, job)]
        smaller = [other for other in later if _share(other) <= job.gpus_min]
        choice = choose(draft, job, [over, smaller])
        if choice is None:
            return False
        balance = self._balance()  # without this check two jobs could preempt each other forever (see `_Balance`)
        if not balance.is_fairer(job, choice[0]):
            levels = [[other for other in level if balance.is_fairer(job, [other])] for level in (over, smaller)]
            choice = choose(draft, job, levels)
            if choice is None or not balance.is_fairer(job, choice[0]):
                return False
        claim_room(draft, job, choice, f"preempted by job {job.id}, to which this share belongs")
        return True

    def _balance(self) -> _Balance:
        """Return what each group has of its share in the current draft."""
        groups, draft = self.groups, self.draft
        has = Counter[str]()
        for key, group in groups.with_room.items():
            for (where, _, _), job in group.with_room():
                if where != BOUND and job.id not in draft.evictions and self._is_here(job):
                    has[key] += job.gpus_min
        for job in map(draft.snapshot.job, draft.placements):
            if job.planned is None:
                has[groups.key(job)] += job.gpus_min
        if not self.shares:
            self.shares = self._lasting_shares()
        return _Balance(groups, self.shares, has)

    def _lasting_shares(self) -> dict[str, tuple[ShareClaim, float]]:
        """Return the shares, less what is bound, with each group's oldest job as its first.

        Such shares do not depend on which jobs run.
        """
        leasts = [self._lasting_least(claim) for claim in self.claims]
        factor = common_factor(self.capacity, self.claims, leasts)
        leasts += [self._lasting_least(claim) for claim in self.others]
        return {
            claim.group.key: (claim, _share_by(factor, claim, least) - claim.bound)
            for claim, least in zip([*self.claims, *self.others], leasts, strict=True)
        }

    def _lasting_least(self, claim: ShareClaim) -> int:
        """Return the least share of a group whose first job is its oldest one that can be preempted or waits."""
        entries = [*claim.group.with_room()]
        entries += claim.group.jobs[len(entries) : len(entries) + 1]  # the oldest one that waits
        jobs = [job for (where, _, _), job in entries if where != BOUND and self._is_here(job)]
        bound = min(claim.bound, claim.demand)
        return max(bound, self._least(claim, min(jobs, key=_sequence).gpus_min)) if jobs else bound

    def _is_later(self, other: Job, job: Job) -> bool:
        """Return whether the turn of ``other``, which has a grant too, comes after that of ``job``."""
        if other.id not in self.turns:
            return False
        turn, theirs = self.turns[job.id][0], self.turns[other.id][0]
        same_group = theirs[-1] == turn[-1]
        return other.sequence > job.sequence if same_group else theirs > turn

    def fill(self) -> None:
        """Start jobs that fit into what is left and could be preempted again."""
        queue = self.draft.snapshot.queue
        assert isinstance(queue, DemandQueue)
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


def _by_remainder(claim: ShareClaim, step: SizeStep) -> tuple[float, bool, int, ShareClaim]:
    lacks = claim.left / step.parts + (1 if step.has else 0)
    return (-round(lacks, SAME), step.has, claim.group.number, claim)


def _first(claim: ShareClaim) -> SizeStep:
    assert claim.next is not None
    return claim.next


def _turn(claim: ShareClaim, step: SizeStep) -> Turn:
    """Return the turn of ``claim``, which does not depend on the jobs that run already."""
    return _rank(claim, claim.left, step.parts)


def _rank(claim: ShareClaim, left: float, parts: int) -> Turn:
    lacks = math.ceil(round(left / parts, SAME))
    return (-lacks, -round(claim.weight, SAME), claim.group.number)


def _sequence(job: Job) -> int:
    return job.sequence


def _when(entry: tuple[Turn, *tuple[object, ...]]) -> Turn:
    return entry[0]


def _share(job: Job) -> int:
    return job.planned.share if job.planned is not None else 0


def _allotted(draft: Draft, job: Job) -> int:
    allocation = draft.allocation(job)
    return allocation.share if allocation is not None else 0


def _demand(job: Job) -> Hashable:
    return (demand_of(job), job.preemptible)
