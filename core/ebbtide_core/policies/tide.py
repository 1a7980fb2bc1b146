"""Tide: whoever is expected to be done soonest goes first, and room is made where that delays everybody least in sum.

Waiting jobs have their turns by priority, and within a priority by their time per completion over their weight (see
`ebbtide_core.estimates.outlook`), which counts `TRIAL_WEIGHT` times for a trial-and-error job. Whoever fits may pass.
For a job that does not fit, elastic jobs shrink; else jobs step aside if that costs less than to wait:

    2 · Σ price(v) · (t + cost(v))  <  price(j) · (W - save)

A second of delay is priced by ``price``, the weight over the expected length, so that a delay counts relative to how
long a job takes anyway. Job j takes t seconds per completion and would have room in W seconds if it waits: when room is
expected to appear (`RoomRates`), and as much later as it has waited in vain, but no later than it is due. Each victim v
is delayed by t and by what stepping aside and coming back costs it, as measured, and j by the longest of their saves. A
victim must be expected to take `TWICE` as long as j, and its own cost longer, so that none steps aside for a job
that it would preempt in turn, nor for a small error of an estimate. Jobs of its own priority step aside only for a
trial-and-error job, for one that is known to be done soon (`may_ask_equals`), and for one that is due. The delay of a
less urgent job counts next to nothing, so it steps aside unless room appears in a hundredth of t anyway; a more urgent
job is never preempted.

A job that waits for ``bound`` times its expected length is due. Due jobs have their turns before the others of their
priority, in the order in which they became due, as long as they have no more than `SHARE_OF_DUE` of the GPUs together
with those that were due before them. If such a job still waits one more expected length later, what is free where it is
expected to fit first is kept for it. Once it runs, no job of its priority preempts it. So what it waits for after that
length is the work of jobs that were due before it, and were submitted before that; whoever was due later, or is less
urgent, takes no room kept for it.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from ebbtide_core.estimates.sharing import working_size
from ebbtide_core.job.job import Job
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.elastic import fit_ranges, grow
from ebbtide_core.planning.policy import JobImportance, Policy
from ebbtide_core.planning.staying import NOT_FOR_CPUS, Stay, stays_by_itself
from ebbtide_core.planning.tide.evening_out import EveningOut
from ebbtide_core.planning.tide.index import TideIndex
from ebbtide_core.planning.tide.queue import TideQueue
from ebbtide_core.planning.tide.turns import Turns
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Tide(Policy):
    """The policy's options.

    ``bound``: a job is due once the time since its submit is this many times its expected length. ``min_run_s``: as for
    `FitGpp`. ``resize_after_s``: as for `Fifo`.
    """

    bound: float = 12.0
    min_run_s: float = 1.0
    resize_after_s: float = 60.0
    goes_by: ClassVar[frozenset[JobImportance]] = frozenset({JobImportance.PRIORITY, JobImportance.WEIGHT})

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bound) and self.bound >= 1):
            raise ValueError(f"bound is at least 1, not {self.bound}")

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """Apply the rules by priority and of the job itself; what is weighed is in the reason of the waiting job."""
        if job.priority < waiting.priority:
            return Stay(f"of priority {job.priority}, which is more urgent than {waiting.priority}")
        if job.gpus_min and not waiting.gpus_min:
            return NOT_FOR_CPUS
        return stays_by_itself(job, self.min_run_s, now)

    def queue(self) -> TideQueue:
        """Order waiting jobs by priority, then by who is expected to be done soonest."""
        return TideQueue(self.bound)

    def ranking(self, state: PoolState) -> Ranking:
        """Index what earlier jobs tell, and how often room appears."""
        assert isinstance(state.queue, TideQueue)
        return TideIndex(state, state.queue)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Offer each job its turn, then let elastic jobs grow."""
        draft = Draft(snapshot, lambda job: working_size(job, snapshot.speedup_of(job)))
        fit_ranges(draft)
        turns = Turns(draft, self.bound, self.min_run_s, self.resize_after_s)
        draft.trial.spreads |= not (turns.foresight.index.wide_jobs_come or snapshot.books.loans)
        for priority in sorted(turns.queue.by_priority):
            turns.offer_to_due(priority)
            turns.offer_to_soonest(priority)
        grow(draft, self.resize_after_s)
        EveningOut(draft, turns.foresight, self.resize_after_s).where_something_changed()
        return draft.plan()
