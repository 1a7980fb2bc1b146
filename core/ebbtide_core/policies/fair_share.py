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
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from ebbtide_core.admission.queues import DemandQueue, by_arrival, demand_of
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation
from ebbtide_core.planning.defragment import defragment
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.planning.fair_share.claims import Turn
from ebbtide_core.planning.fair_share.fairness import Fairness
from ebbtide_core.planning.fair_share.granting import Granting, only_job
from ebbtide_core.planning.fair_share.groups import BOUND, Groups, ShareGroup, Stand, share_of, stand_of
from ebbtide_core.planning.policy import JobImportance, Policy
from ebbtide_core.planning.preemption import choose, may_be_preempted
from ebbtide_core.planning.preemption import claim as claim_room
from ebbtide_core.planning.staying import Stay, stays_by_itself
from ebbtide_core.resources.eligibility import holds_up
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


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
        return Groups(self.per, self.half_life_s, self.min_run_s, state.most_of_use)

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


class _Pass:
    """One pass of the policy, which carries out what is granted."""

    def __init__(self, policy: FairShare, draft: Draft) -> None:
        self.policy = policy
        self.draft = draft
        self.granting = Granting(draft, policy.per, policy.half_life_s)
        self.groups = self.granting.groups

    def start_without_gpus(self) -> None:
        """Start jobs without GPUs in order of arrival, until one has to wait that holds up those behind it."""
        draft, blocked = self.draft, False

        def start(job: Job) -> bool:
            nonlocal blocked
            if blocked:
                return False
            if draft.admit(job):
                return True
            draft.wait(job)
            blocked = holds_up(job, draft.snapshot.books)
            return False

        self._queue.first_fit(start, lambda: 0)

    @property
    def _queue(self) -> DemandQueue:
        queue = self.draft.snapshot.queue
        assert isinstance(queue, DemandQueue)
        return queue

    def start_those_with_a_share(self) -> None:
        """Place all waiting jobs that have a grant: where there is room, else where others have too much."""
        draft, grants, first = self.draft, self.granting.grants, True
        for job in self.granting.newcomers:
            if job.id not in grants or draft.admit(job) or self._shrink_for(job) or self._preempt_for(job):
                continue
            if not (first and defragment(draft, job, self.policy.resize_after_s)):
                draft.wait(job)
                first = False

    def _shrink_for(self, job: Job) -> bool:
        surplus = [
            other
            for other in self.draft.elastic()
            if (room := self.draft.allocation(other)) and room.share > self.granting.granted(other)
        ]
        if not surplus or not admit_by_shrinking(self.draft, job, self.policy.resize_after_s, surplus):
            return False
        for other in surplus:
            self._give_back(other)
        return True

    def _give_back(self, job: Job) -> None:
        """Let ``job``, which shrank to its smallest size, keep its grant, because only its surplus is for others."""
        draft, share, room = self.draft, self.granting.granted(job), self.draft.allocation(job)
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
        balance = self._balance()  # without this check two jobs could preempt each other forever (see `Fairness`)
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
        kinds = [kind for kind in self.groups.kinds.items() if kind[0] not in self.granting.blocks]
        groups = [group for _, members in kinds if only_job(members[0][1]).planned is not None for _, group in members]
        jobs = [job for group in (*self.groups.others.values(), *groups) for _, job in group.with_room()]
        return [*self.granting.revoked.values(), *[job for job in jobs if job.id not in self.granting.grants]]

    def _smaller_and_later(self, job: Job) -> Iterator[Job]:
        """Yield the jobs with a grant and no more room than ``job`` needs whose turn comes after that of ``job``."""
        turn = self.granting.turns[job.id][0]
        for theirs, step in self.granting.turns.values():
            other = step.job
            later = other.sequence > job.sequence if theirs[-1] == turn[-1] else theirs > turn
            if later and other.planned is not None and share_of(other) <= job.gpus_min:
                yield other
        for block in self.granting.blocks.values():
            if block.room <= job.gpus_min:
                yield from map(_job, block.latest_first(block.later(turn)))

    def _balance(self) -> Fairness:
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
                if where != BOUND and job.id not in draft.evictions and self.granting.is_here(job)
            )
            return placed[group.key] + sum(stay)

        return Fairness(groups, self.granting.lasting_shares(), has)

    def fill(self) -> None:
        """Start jobs that fit into what is left and could be preempted again, but not where others are to grow."""
        trial = self.draft.trial
        kept = [*self._keep_to_grow()] if trial.idle else []
        self._queue.first_fit(self._fill_with, lambda: trial.most)
        for room, larger in kept:
            trial.give(larger)
            trial.take(room)

    def _keep_to_grow(self) -> Iterator[tuple[Allocation, Allocation]]:
        """Take what is idle beside elastic jobs and granted to them; yield the room of each, without and with that."""
        trial = self.draft.trial
        for job in self.draft.elastic():
            room = self.draft.allocation(job)
            lacks = 0 if room is None else self.granting.granted(job) // WHOLE - room.share // WHOLE
            if room is None or lacks <= 0:
                continue
            for count in (lacks, min(lacks, trial.idle_beside(job, room))):
                larger = trial.grown(job, room, room.share + count * WHOLE) if count else None
                if larger is not None:
                    trial.give(room)
                    trial.take(larger)
                    yield room, larger
                    break

    def _fill_with(self, job: Job) -> bool:
        if job.id in self.draft.placements:
            return True
        if not job.gpus_min or not job.preemptible or job.id in self.granting.grants or not self.draft.admit(job):
            return False
        self.draft.waits.pop(job.id, None)
        return True


def _stand(job: Job) -> Stand:
    stand = stand_of(job)
    assert stand is not None, f"job {job.id} has room and is not active"
    return stand


def _job(entry: tuple[Turn, Job]) -> Job:
    return entry[1]


def _demand(job: Job) -> Hashable:
    return (demand_of(job), job.preemptible)
