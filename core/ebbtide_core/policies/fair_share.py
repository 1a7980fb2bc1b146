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
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush, heapreplace, merge
from itertools import islice, pairwise
from operator import itemgetter
from typing import ClassVar, Final, Literal

from ebbtide_core.admission.queues import DemandQueue, by_arrival, demand_of
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, JobId
from ebbtide_core.planning.defragment import defragment
from ebbtide_core.planning.draft import Draft, count_text
from ebbtide_core.planning.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.planning.groups import (
    BOUND,
    LOOK_AHEAD,
    Groups,
    Kind,
    ShareGroup,
    Stand,
    faded,
    share_of,
    stand_of,
)
from ebbtide_core.planning.policy import JobImportance, Policy
from ebbtide_core.planning.preemption import choose, may_be_preempted
from ebbtide_core.planning.preemption import claim as claim_room
from ebbtide_core.planning.staying import Stay, stays_by_itself
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot

SAME: Final = 9
"""Shares that agree to this many decimal places count as equal."""
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
        return Groups(self.per, self.half_life_s, self.min_run_s)

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
    for the oldest group until that has its first job or cannot have it, then for the ``others``. If ``at_once`` is
    set, these are all ``alike`` down to their only job, which has its room and one size.
    """

    group: ShareGroup
    weight: float
    demand: int
    bound: int
    least: int
    steps: Iterator[SizeStep]
    count: int = 1
    alike: Sequence[tuple[int, ShareGroup]] = ()
    others: Iterator[tuple[int, ShareGroup]] | None = None
    at_once: bool = False
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


@dataclass(slots=True, eq=False)
class Block:
    """Jobs of one kind that all keep their room, each alone in its group: ``members`` are the groups, the oldest first.

    Each job is granted ``parts``, and has ``room``. ``rank`` is their `Turn` without the number of the group; None if
    they give way to no job.
    """

    members: Sequence[tuple[int, ShareGroup]]
    parts: int
    room: int
    rank: tuple[int, float] | None

    def later(self, turn: Turn) -> int:
        """Return the index of the first member whose turn comes after ``turn``."""
        if self.rank is None or self.rank < turn[:2]:
            return len(self.members)
        return 0 if self.rank > turn[:2] else bisect_right(self.members, turn[2], key=itemgetter(0))

    def latest_first(self, since: int) -> Iterator[tuple[Turn, Job]]:
        """Yield the turns and jobs of the members from that index on, the last one first."""
        if (rank := self.rank) is not None:
            for number, group in reversed(self.members[since:]):
                yield (*rank, number), only_job(group)

    def remove(self, group: ShareGroup) -> None:
        """Remove one member; the sequence is copied, because it may be that of the index."""
        at = bisect_left(self.members, group.number, key=itemgetter(0))
        self.members = [*self.members[:at], *self.members[at + 1 :]]


def only_job(group: ShareGroup) -> Job:
    """Return the first job of ``group``, its only one if the group is in a block."""
    return group.jobs[0][1]


@dataclass(frozen=True, slots=True)
class _Balance:
    """How fairly GPUs are shared: which parts of its share each group has, with all jobs at their smallest size.

    A part is ranked by what its group would lack without it, in terms of the group's smallest job and rounded up, then
    by weight and age, as in `Turn`. Of two divisions of the GPUs, the fairer one has the first part in which they
    differ; if the groups have the same in both, the one with the oldest job is fairer. This is an order, because
    neither the shares nor the ranks depend on which jobs run. So a policy that preempts only for a fairer division
    does not preempt forever. ``has`` returns what a group has in the present draft.
    """

    groups: Groups
    shares: "_LastingShares"
    has: Callable[[ShareGroup], int]

    def is_fairer(self, job: Job, victims: list[Job]) -> bool:
        """Return whether it is fairer that ``job`` runs instead of ``victims``."""
        own, more = self.groups.key(job), Counter[str]()
        more[own] += job.gpus_min
        for victim in victims:
            more[self.groups.key(victim)] -= victim.gpus_min
        lost = [self._rank(key, parts) for key, parts in more.items() if parts < 0]
        if more[own] > 0:
            rank = self._rank(own, 0)
            return all(rank < other for other in lost)
        return not lost and all(job.sequence < victim.sequence for victim in victims)

    def _rank(self, key: str, more: int) -> Turn:
        """Return the rank of the next part of a group once it has ``more`` parts."""
        group = self.groups.groups[key]
        return self.shares.rank(group, self.has(group) + more)


class _LastingShares:
    """The shares, less what is bound, with each group's oldest job as its first: they do not depend on which jobs run.

    ``claims`` are those of a pass that stand for all groups, by kind, or by key for groups that none is like.
    """

    def __init__(
        self, capacity: int, claims: Mapping[Kind | str, ShareClaim], least: Callable[[ShareClaim], int]
    ) -> None:
        self._claims = claims
        leasts = [least(claim) for claim in claims.values()]
        factor = common_factor(capacity, [*claims.values()], leasts)
        self._shares = {
            of: _share_by(factor, claim, least) - claim.bound
            for (of, claim), least in zip(claims.items(), leasts, strict=True)
        }
        self._units: dict[str, int] = {}

    def rank(self, group: ShareGroup, parts: int) -> Turn:
        """Return the rank of the next part of ``group`` if it has ``parts``."""
        of: Kind | str = group.kind if group.kind in self._claims else group.key  # type: ignore[assignment]
        if group.key not in self._units:
            self._units[group.key] = min([job.gpus_min for _, job in group.jobs])
        return _rank(self._claims[of].weight, group.number, self._shares[of] - parts, self._units[group.key])


class _Pass:
    """One pass of the policy: ``grants`` maps the jobs that should run to their sizes, in parts."""

    def __init__(self, policy: FairShare, draft: Draft) -> None:
        self.policy = policy
        self.draft = draft
        self.groups: Groups = draft.snapshot.ranking
        nodes = draft.snapshot.nodes
        self.capacity = self.room = WHOLE * sum([len(node.slices) for node in nodes.values()])
        self.away = _jobs_away(draft)
        self.grants: dict[JobId, int] = {}
        """What each job is granted, in parts, except for the jobs of ``blocks``."""
        self.blocks: dict[Kind, Block] = {}
        self.revoked: dict[JobId, Job] = {}
        """The jobs that were in a block and had to give way."""
        self.newcomers: list[Job] = []
        """The waiting jobs among ``grants``, in the order in which they were granted their room."""
        self.turns: dict[JobId, tuple[Turn, SizeStep]] = {}
        """The turns and first steps of the granted jobs that may have to give way to others."""
        self.claims = self._claims()
        """The claims among which the GPUs are divided, by kind, or by key for groups that none is like."""
        self.weights = sum([claim.weight * claim.count for claim in self.claims.values()])
        """The sum of the weights of all groups."""
        self._grant_all([*self.claims.values()])

    def _grant_all(self, claims: list[ShareClaim]) -> None:
        for claim in claims:
            if claim.next is not None:
                claim.least = max(claim.least, self._least(claim, claim.next.parts))
        divide(self.room, claims)
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

    def granted(self, job: Job) -> int:
        """Return what ``job`` is granted, in parts."""
        if (parts := self.grants.get(job.id)) is not None:
            return parts
        group = self.groups.groups.get(self.groups.key(job))
        block = None if group is None or group.kind is None else self.blocks.get(group.kind)
        return 0 if block is None or job.id in self.revoked or job.id in self.away else block.parts

    def _claims(self) -> dict[Kind | str, ShareClaim]:
        """Return the claims of all groups; groups of one kind share one if past use is ignored."""
        claims: dict[Kind | str, ShareClaim] = {}
        groups, apart = self.groups, self.policy.half_life_s is not None
        alone = [group for kind in groups.kinds.values() for _, group in kind] if apart else []
        for group in [*groups.others.values(), *alone]:
            if (claim := self._claim(group)) is not None:
                claims[group.key] = claim
        away = {known.kind for job in self.away.values() if (known := groups.groups.get(groups.key(job))) is not None}
        for kind, members in () if apart else groups.kinds.items():
            alike = members if kind not in away else [each for each in members if self._is_here(only_job(each[1]))]
            if alike and (claim := self._claim(alike[0][1])) is not None:
                claim.count, claim.alike, claim.others = len(alike), alike, islice(alike, 1, None)
                first = only_job(claim.group)
                claim.at_once = first.planned is not None and not first.elastic
                claims[kind] = claim
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
                bound += share_of(job)
        if not here:
            return None
        weight /= 1.0 + self._had_lately(group)
        claim = ShareClaim(group, weight, here, bound, min(bound, here), self._steps(group))
        claim.next = next(claim.steps, None)
        return claim

    def _is_here(self, job: Job) -> bool:
        """Return whether all nodes of the room promised to ``job`` are connected."""
        return job.id not in self.away

    def _steps(self, group: ShareGroup) -> Iterator[SizeStep]:
        """Yield the steps of the jobs that can be preempted: first each one's smallest size, then their growth."""
        elastic = []
        for (where, _, _), job in group.jobs:
            if where != BOUND and self._is_here(job):
                yield SizeStep(job, job.gpus_min, job.planned is not None, grows=False)
                if job.elastic:
                    elastic.append(job)
        for job in elastic:
            has = share_of(job)
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
        if claim.bound and claim.alike:
            self._grant_at_once(claim, claim.bound, None)
        for (where, _, _), job in claim.group.with_room() if claim.bound and not claim.alike else ():
            if where == BOUND and self._is_here(job):
                self.grants[job.id] = share_of(job)
        self.room -= claim.bound * claim.count
        claim.left -= claim.bound
        claim.granted = claim.bound

    def _grant_at_once(self, claim: ShareClaim, parts: int, rank: tuple[int, float] | None) -> None:
        """Grant ``parts`` to the only job of each group that ``claim`` stands for."""
        kind = claim.group.kind
        assert kind is not None
        self.blocks[kind] = Block(claim.alike, parts, share_of(only_job(claim.group)), rank)

    def _grant_by_remainder(self, claims: list[ShareClaim]) -> None:
        """Repeatedly grant the next step of the group that lacks most of its share, in terms of its next job.

        A running job counts as one more job lacked, so it stays unless another group lacks more by a whole job.
        """
        heap = [_by_remainder(claim, claim.next) for claim in claims if claim.next] if self.room > 0 else []
        heapify(heap)
        while heap and self.room > 0:
            claim = heap[0][-1]
            if claim.at_once:
                claim.at_once, level = False, heap[0][:2]
                if self._all_fit([entry[-1] for entry in heap if entry[:2] == level]):
                    self._keep_all(claim)
                    heappop(heap)
                    continue
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

    def _all_fit(self, claims: list[ShareClaim]) -> bool:
        """Return whether all groups that ``claims`` stand for can have all that they ask for; some may have it."""
        return sum([claim.demand * claim.count - claim.granted for claim in claims]) <= self.room

    def _keep_all(self, claim: ShareClaim) -> None:
        """Grant its room to each job that ``claim``, which is to be granted ``at_once``, stands for."""
        step = _first(claim)
        if claim.left > 0.0 or step.job.preemptible:
            self._grant_at_once(claim, step.parts, _turn(claim, step)[:2] if step.job.preemptible else None)
            self.room -= step.parts * claim.count
            claim.left -= step.parts
            claim.granted, claim.next = step.parts, None

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
        blocks = [block.parts for block in self.blocks.values() if block.rank is not None]
        smallest = min([step.parts for _, step in self.turns.values()] + blocks, default=0)
        passed: list[tuple[Turn, ShareClaim]] = []
        for claim in claims:
            first, left = claim.next, claim.left
            if first and (not claim.granted or left >= first.parts) and left > 0 < smallest < first.parts:
                passed.append((_turn(claim, first), claim))
                while first.has and (other := self._other(claim, left)) is not None:
                    passed.append((_turn(other, _first(other)), other))
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
        blocks = [(block, block.later(turn)) for block in self.blocks.values() if block.parts < first.parts]
        blocks = [(block, since) for block, since in blocks if since < len(block.members)]
        given = sum([self.grants[step.job.id] for _, step in smaller])
        given += sum([block.parts * (len(block.members) - since) for block, since in blocks])
        if self.room + given < first.parts:
            return False
        one_by_one = [(turn, step.job) for turn, step in sorted(smaller, key=_when, reverse=True)]
        latest_first = merge(
            one_by_one, *[block.latest_first(since) for block, since in blocks], key=_when, reverse=True
        )
        self._revoke(latest_first, first.parts)
        self.turns[first.job.id] = turn, first
        return self._grant(claim, first)

    def _is_premature(self, step: SizeStep) -> bool:
        """Return whether ``step`` would grow a job whose smallest size is not granted, or no longer."""
        return step.grows and step.job.id not in self.grants

    def _revoke(self, entries: Iterable[tuple[Turn, Job]], parts: int) -> None:
        """Revoke grants from the first of ``entries`` on until ``parts`` fit, then restore those not needed."""
        revoked: list[Job] = []
        for _, job in entries:
            if self.room >= parts:
                break
            revoked.append(job)
            self.room += self.granted(job)
        for job in reversed(revoked):
            if self.room - self.granted(job) >= parts:
                self.room -= self.granted(job)
            else:
                self._take_back(job)

    def _take_back(self, job: Job) -> None:
        if job.id in self.grants:
            del self.grants[job.id], self.turns[job.id]
            return
        group = self.groups.groups[self.groups.key(job)]
        assert group.kind is not None
        self.blocks[group.kind].remove(group)
        self.revoked[job.id] = job

    def _other(self, claim: ShareClaim, left: float) -> ShareClaim | None:
        """Return the claim of the next oldest group of the same kind, with the same share; None if there is none."""
        _, group = next(claim.others or iter(()), (0, None))
        if group is None:
            return None
        other = replace(claim, group=group, steps=self._steps(group), left=left, granted=0)
        other.next = next(other.steps)
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
            if (room := self.draft.allocation(other)) and room.share > self.granted(other)
        ]
        if not surplus or not admit_by_shrinking(self.draft, job, self.policy.resize_after_s, surplus):
            return False
        for other in surplus:
            self._give_back(other)
        return True

    def _give_back(self, job: Job) -> None:
        """Let ``job``, which shrank to its smallest size, keep its grant, because only its surplus is for others."""
        draft, share, room = self.draft, self.granted(job), self.draft.allocation(job)
        if room is None or room.share >= share:
            return
        draft.trial.give(room)
        larger = draft.trial.find(job, share, room.node_ids)
        draft.trial.take(room)
        if larger is not None:
            draft.place(job, larger, draft.placements[job.id].reason, claim=True)

    def _preempt_for(self, job: Job) -> bool:
        """Preempt jobs without a grant for ``job``, the newest first; else smaller jobs whose turn is later."""
        draft = self.draft
        for other in self.resumed:  # requests a pass for when each of them is not spared any more
            self._may_be_preempted(other)
        choice = choose(draft, job, self._levels(job))
        if choice is None:
            return False
        balance = self._balance()  # without this check two jobs could preempt each other forever (see `_Balance`)
        if not balance.is_fairer(job, choice[0]):
            fairer = ([other for other in level if balance.is_fairer(job, [other])] for level in self._levels(job))
            choice = choose(draft, job, fairer)
            if choice is None or not balance.is_fairer(job, choice[0]):
                return False
        claim_room(draft, job, choice, f"preempted by job {job.id}, to which this share belongs")
        return True

    def _may_be_preempted(self, job: Job) -> bool:
        return may_be_preempted(self.draft, job, self.policy.min_run_s)

    def _levels(self, job: Job) -> Iterator[list[Job]]:
        """Yield those that may be preempted of the jobs without a grant, then of the smaller ones; the newest first."""
        draft = self.draft
        yield [
            other
            for other in self.preemptible_without_grant
            if other.id not in draft.evictions and other.id not in draft.placements
        ]
        yield self._preemptible(self._smaller_and_later(job))

    def _preemptible(self, jobs: Iterable[Job]) -> list[Job]:
        return sorted(filter(self._may_be_preempted, jobs), key=_stand, reverse=True)

    @cached_property
    def preemptible_without_grant(self) -> list[Job]:
        """The jobs with room and no grant that may be preempted, when this is first asked for; the newest first."""
        return self._preemptible(self.without_grant)

    @cached_property
    def resumed(self) -> list[Job]:
        """The jobs that are spared because they resumed lately."""
        resumed = self.groups.resumed.at(self.draft.snapshot.now)
        return sorted([job for job in resumed if job.gpus_max], key=_stand, reverse=True)

    @cached_property
    def without_grant(self) -> list[Job]:
        """The jobs with room that have no grant."""
        kinds = [kind for kind in self.groups.kinds.items() if kind[0] not in self.blocks]
        groups = [group for _, members in kinds if only_job(members[0][1]).planned is not None for _, group in members]
        jobs = [job for group in (*self.groups.others.values(), *groups) for _, job in group.with_room()]
        return [*self.revoked.values(), *[job for job in jobs if job.id not in self.grants]]

    def _smaller_and_later(self, job: Job) -> Iterator[Job]:
        """Yield the jobs with a grant and no more room than ``job`` needs whose turn comes after that of ``job``."""
        turn = self.turns[job.id][0]
        for theirs, step in self.turns.values():
            other = step.job
            later = other.sequence > job.sequence if theirs[-1] == turn[-1] else theirs > turn
            if later and other.planned is not None and share_of(other) <= job.gpus_min:
                yield other
        for block in self.blocks.values():
            if block.room <= job.gpus_min:
                yield from map(_job, block.latest_first(block.later(turn)))

    def _balance(self) -> _Balance:
        """Return what each group has of its share in the current draft."""
        groups, draft = self.groups, self.draft
        placed = Counter[str]()
        for job in map(draft.snapshot.job, draft.placements):
            if job.planned is None:
                placed[groups.key(job)] += job.gpus_min

        def has(group: ShareGroup) -> int:
            stay = (
                job.gpus_min
                for (where, _, _), job in group.with_room()
                if where != BOUND and job.id not in draft.evictions and self._is_here(job)
            )
            return placed[group.key] + sum(stay)

        return _Balance(groups, self.shares, has)

    @cached_property
    def shares(self) -> _LastingShares:
        """The shares that do not depend on which jobs run."""
        return _LastingShares(self.capacity, self.claims, self._lasting_least)

    def _lasting_least(self, claim: ShareClaim) -> int:
        """Return the least share of a group whose first job is its oldest one that can be preempted or waits."""
        entries = [*claim.group.with_room()]
        entries += claim.group.jobs[len(entries) : len(entries) + 1]  # the oldest one that waits
        jobs = [job for (where, _, _), job in entries if where != BOUND and self._is_here(job)]
        bound = min(claim.bound, claim.demand)
        return max(bound, self._least(claim, min(jobs, key=_sequence).gpus_min)) if jobs else bound

    def fill(self) -> None:
        """Start jobs that fit into what is left and could be preempted again."""
        queue = self.draft.snapshot.queue
        assert isinstance(queue, DemandQueue)
        elastic = self.draft.elastic()
        kept = sum([max(0, self.granted(job) - _allotted(self.draft, job)) for job in elastic])
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
    return _rank(claim.weight, claim.group.number, claim.left, step.parts)


def _rank(weight: float, number: int, left: float, parts: int) -> Turn:
    lacks = math.ceil(round(left / parts, SAME))
    return (-lacks, -round(weight, SAME), number)


def _jobs_away(draft: Draft) -> dict[JobId, Job]:
    """Return the jobs that are promised room on a node that cannot be used now."""
    nodes, usable = draft.snapshot.books.nodes, draft.snapshot.nodes
    if len(nodes) == len(usable):
        return {}
    return {id: draft.snapshot.job(id) for node in nodes.values() if node.id not in usable for id in node.planned}


def _sequence(job: Job) -> int:
    return job.sequence


def _when(entry: tuple[Turn, *tuple[object, ...]]) -> Turn:
    return entry[0]


def _stand(job: Job) -> Stand:
    stand = stand_of(job)
    assert stand is not None, f"job {job.id} has room and is not active"
    return stand


def _job(entry: tuple[Turn, Job]) -> Job:
    return entry[1]


def _allotted(draft: Draft, job: Job) -> int:
    allocation = draft.allocation(job)
    return allocation.share if allocation is not None else 0


def _demand(job: Job) -> Hashable:
    return (demand_of(job), job.preemptible)
