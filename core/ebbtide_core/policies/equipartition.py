"""Equipartition: equal shares for all, without a look at how long anybody runs (seed 001, §IV-A).

Four cases, by what the pool has and needs. p_min and p_max are the ends of a job's range, and a job cannot have more
than its node has:

1. p_min of all is as much as there is, or more: p_min each, in order of arrival, as far as it goes.
2. p_max of all is no more than the vacant GPUs: p_max each.
3. There is a vacant GPU for each (or as many as it needs at least): one each, the others by D'Hondt with p_max votes.
4. Else jobs share GPUs: each chooses the GPU with the fewest, and a GPU is divided equally among those that chose it.

Of a script whose speed was measured at several sizes (see `ebbtide_core.estimates.curves`), p_max is the greatest one
of use.

Where the paper is silent: of equal D'Hondt quotients, the job that came first wins. What an equal share means in case
3 for a job that cannot have a whole GPU is p_max. In case 4 a GPU is passed over if somebody there would be left with
less than p_min. If the GPUs of a case cannot be had in one piece, a job gets the next smaller size that can.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE
from ebbtide_core.policies.draft import Draft
from ebbtide_core.policies.malleable import check_rules, plan_malleable
from ebbtide_core.policies.moldable import plan_moldable
from ebbtide_core.policies.policy import Policy
from ebbtide_core.policies.pool import Arrivals, Members, Supply, Wanted, enough_for_all, reach
from ebbtide_core.policies.seats import dhondt
from ebbtide_core.policies.staying import Stay, stays_by_itself
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class MoldableEquipartition(Policy):
    """Divides what is free equally among the waiting jobs; who runs keeps what they have (Moldable Equipartition)."""

    def queue(self) -> Arrivals:
        """Order waiting jobs by arrival."""
        return Arrivals()

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start waiting jobs by the four cases."""
        return plan_moldable(snapshot, divide_equally)


@dataclass(frozen=True, slots=True)
class MalleableEquipartition(Policy):
    """Divides all GPUs equally among running and waiting jobs, again and again (Malleable Equipartition).

    ``min_work_s``: only jobs with more work left than this, in seconds on one GPU, are resized or suspended; the others
    keep what they have and leave the pool (paper: 300). Jobs of unknown work are taken for longer.
    ``resize_after_s``: an attempt is resized or suspended only after it has run this long, in seconds (paper: 0).
    ``gain_restarts``: a job grows only if that ends it sooner by more than so many times what its restart cost,
    measured (paper: 0).
    """

    min_work_s: float = 300.0
    resize_after_s: float = 60.0
    gain_restarts: float = 1.0

    def __post_init__(self) -> None:
        check_rules(self)

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """What shares come to is another matter."""
        return stays_by_itself(job, 0.0, now)

    def queue(self) -> Arrivals:
        """Order waiting jobs by arrival."""
        return Arrivals()

    def ranking(self, state: PoolState) -> Ranking:
        """Those that have room, in order of arrival."""
        return Members(state)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start, resize and suspend jobs by the four cases."""
        return plan_malleable(snapshot, divide_equally, self, lambda _: "an equal share of the GPUs")


def divide_equally(draft: Draft, jobs: Sequence[Job], here: Supply) -> Wanted | None:
    """Cases 2 and 3; None in case 4."""
    most = [reach(job, draft.snapshot) for job in jobs]
    if (all_of_it := enough_for_all(jobs, most, here, draft.snapshot.has_curves)) is not None:
        return all_of_it
    starts = [max(1, job.gpus_min // WHOLE) for job in jobs]
    if sum(starts) > here.vacant:
        return None
    seats = dhondt([share // WHOLE for share in most], starts, here.vacant)
    wanted = [(job, min(count * WHOLE, share)) for job, count, share in zip(jobs, seats, most, strict=True)]
    return sorted(wanted, key=lambda each: -each[1])
