"""Malleable policies resize, suspend and resume running jobs as others come and go (seed 001, §IV).

The algorithms are those of the moldable policies, over the waiting and the running jobs. They change as little as they
can: a job whose size stays is not touched, a job that shrinks keeps some of its GPUs, and a job that grows keeps all
and gets more. Jobs move only if otherwise some would have no room.

Some running jobs keep what they have and leave the pool: jobs with little work left, jobs that may not be suspended,
jobs that were resized a short while ago, and jobs on nodes or GPUs that cannot be used now. Attempts that have not
started yet count, but are left alone until they have.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import Allocation, JobId
from ebbtide_core.planning.balance import balanced
from ebbtide_core.planning.draft import CROWDED_OUT, Draft
from ebbtide_core.planning.moldable import find_at_most, most_free, start_at_smallest, start_without_gpus
from ebbtide_core.planning.pool import Arrivals, Divide, Members, PlacedJob, Wanted, places_for, supply, typical
from ebbtide_core.planning.resizing import Why, fits_beside, grown, on_own_gpus, shrunk, shrunk_on
from ebbtide_core.snapshot import Plan, Snapshot


class Rules(Protocol):
    """When running jobs are resized; see `ebbtide_core.policies.equipartition.MalleableEquipartition`."""

    @property
    def min_work_s(self) -> float:
        """Work that a job must have left, in seconds on one GPU."""

    @property
    def resize_after_s(self) -> float:
        """How long an attempt must have run, in seconds."""

    @property
    def gain_restarts(self) -> float:
        """How many times the measured restart cost a job must save by growing."""


def check_rules(rules: Rules) -> None:
    """Raise ``ValueError`` unless all of ``rules`` are numbers of at least 0."""
    for name in ("min_work_s", "resize_after_s", "gain_restarts"):
        value: float = getattr(rules, name)
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} is at least 0 and finite, not {value}")


@dataclass(slots=True)
class Pool:
    """The jobs that GPUs are divided among, beside the queue.

    ``members`` have room; those that are ``still`` count but are left alone. The ``returning`` jobs are being preempted
    and will wait again: they count, but cannot be placed yet.
    """

    members: list[PlacedJob] = field(default_factory=list)
    still: set[JobId] = field(default_factory=set)
    returning: Sequence[Job] = ()

    def moving(self) -> dict[JobId, PlacedJob]:
        """Return the members whose room may be changed, by their ids."""
        return {member.job.id: member for member in self.members if member.job.id not in self.still}

    @property
    def smallest(self) -> int:
        """The sum of the smallest sizes of its jobs, in parts."""
        return sum([member.smallest for member in self.members]) + sum([job.gpus_min for job in self.returning])


def plan_malleable(snapshot: Snapshot, divide: Divide, rules: Rules, why: Why) -> Plan:
    """Plan a pass that divides all that the pool has among its jobs by ``divide``."""
    queue, draft = snapshot.queue, Draft(snapshot)
    assert isinstance(queue, Arrivals)
    if _only_the_queue_matters(draft, queue, snapshot.ranking):
        if start_at_smallest(draft, queue):
            return draft.plan()
        draft = Draft(snapshot)
    start_without_gpus(draft, queue)
    pool = _pool(draft, snapshot.ranking, rules)
    while True:
        here = supply(draft, pool.members)
        if queue.smallest(snapshot.books) + pool.smallest >= here.available:
            return _carry_out(draft, queue, pool, _smallest(snapshot, queue, pool), why).plan()
        jobs = _in_order_of_arrival(pool, queue.with_gpus(snapshot.books))
        wanted = divide(draft, jobs, here)
        if wanted is None:
            _balance(draft, pool, jobs, why)
            return draft.plan()
        if not (vain := _growing_in_vain(snapshot, pool, wanted, rules)):
            return _carry_out(draft, queue, pool, wanted, why).plan()
        pool.members = [member for member in pool.members if member.job.id not in vain]


def _only_the_queue_matters(draft: Draft, queue: Arrivals, members: Members) -> bool:
    """Return whether jobs with room have their smallest size and came before all waiting ones, which fill the rest.

    Then the first case of the policy holds, and the pass only starts waiting jobs. An overloaded cluster stays in this
    state, and the pass need not look at the running jobs.
    """
    if not members.even or members.returning:
        return False
    head = queue.head()
    if head is not None and members.all and head.sequence < members.all[-1].sequence:
        return False
    return queue.smallest(draft.snapshot.books) >= supply(draft).available


def _in_order_of_arrival(pool: Pool, waiting: Sequence[Job]) -> list[Job]:
    jobs = [member.job for member in pool.members]
    return sorted([*jobs, *pool.returning, *waiting], key=lambda job: job.sequence)


# --- the jobs that take part ---


def _pool(draft: Draft, members: Members, rules: Rules) -> Pool:
    """Return the jobs that take part, beside the queue."""
    pool, now = Pool(returning=list(members.returning.values())), draft.snapshot.now
    books = draft.snapshot.books
    reliable = len(books.usable) == len(books.nodes) and all(
        len(node.slices) == len(node.gpus) for node in books.usable.values()
    )
    for member in members.all:
        if not reliable and not _usable(draft, member):
            continue
        if member.running:
            if not member.preemptible or member.job.held_by is not None:
                continue
            started = member.started
            if started is None:
                pool.still.add(member.job.id)
            elif member.in_range:
                if member.nearly_done(now, rules.min_work_s):
                    continue
                if started + rules.resize_after_s > now:
                    draft.recheck(started + rules.resize_after_s)
                    continue
        pool.members.append(member)
    return pool


def _usable(draft: Draft, member: PlacedJob) -> bool:
    """Return whether all nodes and GPUs that ``member`` has can be used now."""
    nodes = draft.trial.nodes
    return all(
        piece.node in nodes and all(gpu.gpu in nodes[piece.node].slices for gpu in piece.gpus)
        for piece in member.planned.nodes
    )


def _growing_in_vain(snapshot: Snapshot, pool: Pool, wanted: Wanted, rules: Rules) -> set[JobId]:
    """Return the jobs that would save at most ``gain_restarts`` times their restart cost by growing."""
    if not rules.gain_restarts:
        return set()
    moving, now = pool.moving(), snapshot.now
    vain = set()
    for job, share in wanted:
        member = moving.get(job.id)
        if member is None or not job.running or not job.gpus_min <= member.share < share:
            continue
        left = member.left(now)
        left = typical(each.left(now) for each in pool.members) if left is None else left
        if (speedup := snapshot.speedup_of(job)) is not snapshot.speedup:
            left *= speedup(member.share) / member.speed(now)  # work was counted by the speed-up at the start
        gain = left / speedup(member.share) - left / speedup(share)
        if gain <= rules.gain_restarts * (job.suspending.restart_cost_s or 0.0):
            vain.add(job.id)
    return vain


# --- what each job gets ---


def _smallest(snapshot: Snapshot, queue: Arrivals, pool: Pool) -> Wanted:
    """Give jobs their smallest size in order of arrival, each one that fits beside those before it.

    Jobs with room stay where they are if they can. If that keeps a job out, the division with all of them placed anew
    is taken if it has room for the same jobs and more.
    """
    wanted, refused = _offer(snapshot, queue, pool, anew=False)
    if refused and len(wanted) < _most_jobs(snapshot, queue, pool):
        other, _ = _offer(snapshot, queue, pool, anew=True)
        if {job.id for job, _ in other} > {job.id for job, _ in wanted}:
            return other
    return wanted


def _offer(snapshot: Snapshot, queue: Arrivals, pool: Pool, *, anew: bool) -> tuple[Wanted, bool]:
    """Return which jobs would get their smallest size, and whether one no larger than what is free would not."""
    draft, members = Draft(snapshot), {member.job.id: member for member in pool.members}
    for member in members.values():
        draft.lift(member.job)
    wanted: Wanted = []
    refused = False

    def fits(job: Job) -> bool:
        nonlocal refused
        allocation = None
        if job.id in members and (job.id in pool.still or not anew):
            allocation = on_own_gpus(draft, job, members[job.id].planned, job.gpus_min)
        allocation = allocation or draft.trial.find(job, job.gpus_min, fullest=True)
        if allocation is None:
            refused = True
            return False
        draft.trial.take(allocation)
        wanted.append((job, job.gpus_min))
        return True

    others = [*(member.job for member in members.values()), *pool.returning]
    queue.first_fit(
        lambda job: job.gpus_max > 0 and fits(job),
        lambda: most_free(draft),
        [(queue.order(job), job) for job in others],
    )
    return wanted, refused


def _most_jobs(snapshot: Snapshot, queue: Arrivals, pool: Pool) -> float:
    """Return a number of jobs beyond which not even the smallest ones fit, wherever they are placed.

    Placing all jobs anew costs much more than this bound, which a crowded cluster has nearly always reached.
    """
    waiting = [job.gpus_min for job, _ in queue.kinds() if job.gpus_max > 0]
    least = min([*waiting, *(job.gpus_min for job in pool.returning), *(member.smallest for member in pool.members)])
    if least == 0 or snapshot.books.beside:
        return math.inf
    return places_for(least, Draft(snapshot), pool.members)


def _balance(draft: Draft, pool: Pool, jobs: Sequence[Job], why: Why) -> None:
    """Share GPUs equally: change jobs that get less first, then those that get more or move, then start others."""
    trial, now = draft.trial, {member.job.id: member.planned for member in pool.members}
    places = balanced(Draft(draft.snapshot), jobs, now, pool.still)
    moving, growing = pool.moving(), []
    for job, allocation in places:
        if job.id not in moving:
            continue
        before = moving[job.id].planned
        if allocation is None:
            draft.evict(job, CROWDED_OUT, None)
        elif allocation != before and shrunk_on(before, allocation):
            draft.place(job, allocation, why(job), claim=True)
        elif allocation != before:
            growing.append((job, allocation, before))
    for job, bigger, before in growing:
        trial.give(before)
        fits = fits_beside(trial, bigger)
        trial.take(before)
        if fits:
            draft.place(job, bigger, why(job), claim=True)
    for job, allocation in places:
        if job.waiting and job.planned is None:
            fits = allocation is not None and fits_beside(trial, allocation)
            draft.settle(job, allocation if fits else None, why(job))


def _carry_out(draft: Draft, queue: Arrivals, pool: Pool, wanted: Wanted, why: Why) -> Draft:
    """Give the jobs their ``wanted`` sizes in place; place all anew if that leaves fewer jobs without room."""
    left_out = _change_little(draft, pool, wanted, why)
    if left_out:
        other = Draft(draft.snapshot)
        other.recheck_at = draft.recheck_at
        start_without_gpus(other, queue)
        if _place_anew(other, pool, wanted, why) < left_out:
            draft = other
    head = queue.head()
    if head is not None and head.id not in draft.placements:
        draft.wait(head)
    return draft


def _change_little(draft: Draft, pool: Pool, wanted: Wanted, why: Why) -> int:
    """Suspend, shrink, start and grow jobs without moving any; return how many are left without room."""
    moving, going_on = pool.moving(), {job.id for job, _ in wanted}
    for id, leaving in moving.items():
        if id not in going_on:
            draft.evict(leaving.job, CROWDED_OUT, None)
    waiting: Wanted = []
    growing: list[tuple[PlacedJob, int]] = []
    for job, share in wanted:
        member = moving.get(job.id)
        if member is None:
            if job.planned is None and job.waiting:
                waiting.append((job, share))
        elif share > member.share:
            growing.append((member, share))
        elif share < member.share:
            smaller = shrunk(draft.trial, job, member.planned, share)
            if smaller is not None:
                draft.place(job, smaller, why(job), claim=True)
    left_out = 0
    for job, share in waiting:
        allocation = find_at_most(draft.trial, job, share)
        left_out += allocation is None
        draft.settle(job, allocation, why(job))
    for member, share in growing:
        bigger = grown(draft.trial, member.job, member.planned, share)
        if bigger is not None:
            draft.place(member.job, bigger, why(member.job), claim=True)
    return left_out


def _place_anew(draft: Draft, pool: Pool, wanted: Wanted, why: Why) -> int:
    """Place all jobs that may be changed as if none of them had room; return how many are left without room."""
    moving = pool.moving()
    for member in moving.values():
        draft.lift(member.job)
    left_out = 0
    for job, share in wanted:
        if job.id in pool.still:
            continue
        allocation = _anew(draft, job, share)
        if job.waiting or job.planned is not None:
            draft.settle(job, allocation, why(job))
        elif allocation is not None:
            draft.trial.take(allocation)
        moving.pop(job.id, None)
        left_out += allocation is None
    for member in moving.values():
        draft.settle(member.job, None, CROWDED_OUT)
    return left_out


def _anew(draft: Draft, job: Job, share: int) -> Allocation | None:
    """Return room for ``job`` on the fullest nodes that fit, at a smaller size if need be; None if there is none."""
    return draft.trial.find(job, share, fullest=True) or find_at_most(draft.trial, job, share)
