"""Proportional shares: each job gets so many GPUs that all would end at the same time (seed 001, §IV-B).

Three cases, by what the pool has and needs; the first two are those of `ebbtide_core.policies.equipartition`:

1. The sum of p_min is all that is available, or more: each job gets p_min, in order of arrival, while there is room.
2. The sum of p_max is no more than the vacant GPUs: each job gets p_max.
3. Else the target makespan is t = Σ v / Σ p over the work v that each has left and all that is available. In
   descending order of v, each gets the size with which its run time v / speedup(p) is closest to t.

Where the paper is silent: of two sizes that are equally close, a job gets the smaller one; of jobs with equal work, the
one that came first chooses first. No job gets so much that the others could not each have p_min. What rounding leaves
over stays free. If a job's GPUs are not free in one piece, it gets the next smaller size that is. For a job of unknown
work, v is the mean of the known ones, or an hour.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ebbtide_core.estimates.work import Speedup
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.malleable import check_rules, plan_malleable
from ebbtide_core.planning.moldable import plan_moldable
from ebbtide_core.planning.policy import Policy
from ebbtide_core.planning.pool import Arrivals, Members, Supply, Wanted, enough_for_all, reach, typical
from ebbtide_core.planning.seats import size_at_most, sizes
from ebbtide_core.planning.staying import Stay, stays_by_itself
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot

DIGITS: Final = 3
"""Decimal places to which work is compared, to the millisecond: equal jobs differ by rounding errors."""
NEARLY_ONE: Final = 1 - 1e-9
"""A tolerance for distances from the target makespan, without which equally close sizes would alternate by pass."""

Left = Callable[[Job], float | None]
"""Returns the work that a job has left, in seconds on one GPU; None if unknown."""


@dataclass(frozen=True, slots=True)
class MoldableProportional(Policy):
    """Divides what is free among the waiting jobs in proportion to their work (Moldable Proportional)."""

    def queue(self) -> Arrivals:
        """Order waiting jobs by arrival."""
        return Arrivals()

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start waiting jobs by the three cases."""

        def left(job: Job) -> float | None:
            estimate = snapshot.remaining(job)
            return None if estimate is None else estimate.work_s

        return plan_moldable(snapshot, lambda draft, jobs, here: divide_by_work(draft, jobs, here, left))


@dataclass(frozen=True, slots=True)
class MalleableProportional(Policy):
    """Divides all GPUs among running and waiting jobs in proportion to their work left, anew in each pass.

    This is Malleable Proportional; ``min_work_s``, ``resize_after_s`` and ``gain_restarts`` are those of
    `ebbtide_core.policies.equipartition.MalleableEquipartition`. Unless ``gain_restarts`` is 0 (paper), a job also
    keeps a size that is next to the one that it should have, because otherwise jobs with equal work would swap sizes
    from pass to pass.
    """

    min_work_s: float = 300.0
    resize_after_s: float = 60.0
    gain_restarts: float = 1.0

    def __post_init__(self) -> None:
        check_rules(self)

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """Apply only the rules of the job itself; how GPUs are divided is not decided here."""
        return stays_by_itself(job, 0.0, now)

    def queue(self) -> Arrivals:
        """Order waiting jobs by arrival."""
        return Arrivals()

    def ranking(self, state: PoolState) -> Ranking:
        """Index the jobs that have room, in order of arrival."""
        return Members(state)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start, resize and suspend jobs by the three cases."""
        members: Members = snapshot.ranking

        def left(job: Job) -> float | None:
            return members.left(job, snapshot.now)

        def now(job: Job) -> int:
            return members.share(job) if self.gain_restarts else 0

        return plan_malleable(
            snapshot,
            lambda draft, jobs, here: divide_by_work(draft, jobs, here, left, now),
            self,
            lambda job: in_proportion(snapshot, job),
        )


def in_proportion(snapshot: Snapshot, job: Job) -> str:
    """Return in words why ``job`` has its size."""
    estimate = snapshot.remaining(job)
    if estimate is None:
        return "in proportion to its work, which is unknown"
    return f"in proportion to the {hours(estimate.work_s)} that it has left, {estimate.source.value}"


def hours(work_s: float) -> str:
    """Return work in words: ``2.5 GPU hours``."""
    return f"{work_s / 3600:.3g} GPU hours"


def divide_by_work(
    draft: Draft, jobs: Sequence[Job], here: Supply, left: Left, now: Callable[[Job], int] = lambda _: 0
) -> Wanted:
    """Divide GPUs by cases 2 and 3. ``now`` is a job's size, which it keeps if that is next to the ideal one."""
    snapshot = draft.snapshot
    most = [reach(job, snapshot) for job in jobs]
    if (all_of_it := enough_for_all(jobs, most, here, snapshot.has_curves)) is not None:
        return all_of_it
    known = [left(job) for job in jobs]
    unknown = typical(known)
    works = [unknown if work is None else work for work in known]
    target = sum(works) * WHOLE / here.available
    if snapshot.has_curves:
        target = _without_late(target, jobs, works, most, here, snapshot)
    rest, reserved = here.available, sum(job.gpus_min for job in jobs)
    wanted: Wanted = []
    for index in sorted(range(len(jobs)), key=lambda index: -round(works[index], DIGITS)):
        job = jobs[index]
        reserved -= job.gpus_min
        choices = sizes(job.gpus_min, most[index])
        ideal = closest(choices, works[index], target, snapshot.speedup_of(job), now(job))
        size = size_at_most(job, min(ideal, rest - reserved))
        rest -= size
        wanted.append((job, size))
    return wanted


def _without_late(
    target: float, jobs: Sequence[Job], works: Sequence[float], most: Sequence[int], here: Supply, snapshot: Snapshot
) -> float:
    """Return the ``target`` makespan, in seconds, of the jobs that can reach it, with what the late jobs leave to them.

    A job is late if by its measured speeds it cannot reach the target even with the ``most`` that is of use to it.
    """
    speedups, others = [snapshot.speedup_of(job) for job in jobs], set(range(len(jobs)))
    rest = here.available
    while True:
        measured = [i for i in others if speedups[i] is not snapshot.speedup]
        late = {i for i in measured if works[i] >= target * speedups[i](most[i])}
        rest -= sum(most[i] for i in late)
        if not late or late == others or rest <= 0:
            return target
        others -= late
        target = sum(works[i] for i in others) * WHOLE / rest


def closest(choices: Sequence[int], work: float, target: float, speedup: Speedup, now: int = 0) -> int:
    """Return the size of ascending ``choices`` with which ``work`` takes the time closest to ``target``, in seconds.

    Return ``now`` if that is the next size slower or faster than the target.
    """

    if not work or not target:
        return now if now in choices else choices[0]
    index = _first_as_fast(choices, work / target, speedup)
    faster = choices[min(index, len(choices) - 1)]
    slower = choices[max(index - 1, 0)]
    if now in (slower, faster):
        return now
    too_fast, too_slow = target - work / speedup(faster), work / speedup(slower) - target
    best = faster if index == 0 or 0 <= too_fast < too_slow * NEARLY_ONE else slower
    return choices[_first_as_fast(choices, speedup(best), speedup)]  # the fewest GPUs with that speed


def _first_as_fast(choices: Sequence[int], speed: float, speedup: Speedup) -> int:
    """Return the index of the first of ``choices`` that reaches ``speed``; their number if none does."""
    return bisect_left(choices, speed, key=speedup) if speedup.points else bisect_left(choices, speed * WHOLE)
