"""Equipartition: equal shares for all jobs, however long they run (seed 001, §IV-A).

Four cases, by what the pool has and needs. p_min and p_max are the ends of a job's range, and a job cannot have more
than its node has:

1. The sum of p_min is all that is available, or more: each job gets p_min, in order of arrival, while there is room.
2. The sum of p_max is no more than the vacant GPUs: each job gets p_max.
3. The vacant GPUs suffice for one per job (or the whole GPUs of its p_min): each job gets these, and the remaining GPUs
   are given out by D'Hondt with p_max votes.
4. Else jobs share GPUs: each chooses the GPU with the fewest jobs, and a GPU is divided equally among those on it.

For a script whose speed was measured at several sizes (see `ebbtide_core.estimates.curves`), p_max is the greatest size
of use.

Where the paper is silent: of equal D'Hondt quotients, the job that came first wins. In case 3, a job that cannot have a
whole GPU gets p_max. In case 4, a job does not choose a GPU where a job would be left with less than p_min. If a job's
GPUs are not free in one piece, it gets the next smaller size that is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.malleable import check_rules, plan_malleable
from ebbtide_core.planning.moldable import plan_moldable
from ebbtide_core.planning.policy import Policy
from ebbtide_core.planning.pool import Arrivals, Members, Supply, Wanted, enough_for_all, reach
from ebbtide_core.planning.seats import dhondt
from ebbtide_core.planning.staying import Stay, stays_by_itself
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class MoldableEquipartition(Policy):
    """Divides what is free equally among the waiting jobs; running jobs keep theirs (Moldable Equipartition)."""

    def queue(self) -> Arrivals:
        """Order waiting jobs by arrival."""
        return Arrivals()

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start waiting jobs by the four cases."""
        return plan_moldable(snapshot, divide_equally)


@dataclass(frozen=True, slots=True)
class MalleableEquipartition(Policy):
    """Divides all GPUs equally among running and waiting jobs, anew in each pass (Malleable Equipartition).

    ``min_work_s``: only jobs with more work left than this, in seconds on one GPU, are resized or suspended; the others
    keep what they have and leave the pool (paper: 300). Jobs of unknown work are assumed to have more.
    ``resize_after_s``: an attempt is resized or suspended only after it has run this long, in seconds (paper: 0).
    ``gain_restarts``: a job grows only if that ends it sooner by more than this many times its measured restart cost
    (paper: 0).
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
        """Start, resize and suspend jobs by the four cases."""
        return plan_malleable(snapshot, divide_equally, self, lambda _: "an equal share of the GPUs")


def divide_equally(draft: Draft, jobs: Sequence[Job], here: Supply) -> Wanted | None:
    """Divide the GPUs by cases 2 and 3; return None in case 4."""
    most = [reach(job, draft.snapshot) for job in jobs]
    if (all_of_it := enough_for_all(jobs, most, here, draft.snapshot.has_curves)) is not None:
        return all_of_it
    starts = [max(1, job.gpus_min // WHOLE) for job in jobs]
    if sum(starts) > here.vacant:
        return None
    seats = dhondt([share // WHOLE for share in most], starts, here.vacant)
    wanted = [(job, min(count * WHOLE, share)) for job, count, share in zip(jobs, seats, most, strict=True)]
    return sorted(wanted, key=lambda each: -each[1])
