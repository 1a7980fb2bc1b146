"""First in, first out: a head of the queue that does not fit blocks the rest (FitGpp's baseline, seed 000 §2.1)."""

from dataclasses import dataclass
from typing import Literal

from ebbtide_core.admission.queues import DemandQueue, Queue, by_arrival
from ebbtide_core.planning.backfill import admit_in_order, demand_in_time, stands_behind
from ebbtide_core.planning.defragment import defragment
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.planning.policy import Policy
from ebbtide_core.resources.eligibility import holds_up
from ebbtide_core.resources.expected_releases import ExpectedReleases
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Fifo(Policy):
    """Places jobs in the order in which they were submitted; no job is preempted, though `defragment` may move some.

    ``resize_after_s``: an elastic attempt is resized only after it has run this long, in seconds. ``backfill``: which
    jobs may pass a job that has to wait: none (``off``), or those that do not delay it (``easy``, see `Backfill`).
    """

    resize_after_s: float = 60.0
    backfill: Literal["off", "easy"] = "off"

    def queue(self) -> Queue:
        """Order waiting jobs by submission."""
        return Queue(by_arrival) if self.backfill == "off" else DemandQueue(by_arrival, demand_in_time)

    def ranking(self, state: PoolState) -> Ranking | None:
        """Index the expected releases for backfill; None without it."""
        return None if self.backfill == "off" else ExpectedReleases(state)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Admit jobs from the head of the queue until one does not fit, then those that ``backfill`` lets pass."""
        draft = Draft(snapshot)
        fit_ranges(draft)
        if self.backfill == "easy":
            admit_in_order(draft, snapshot.ranking, stands_behind(snapshot.queue), self.resize_after_s)
            return draft.plan()
        turns = snapshot.queue.turns()
        for job in turns:
            if not (
                draft.admit(job)
                or admit_by_shrinking(draft, job, self.resize_after_s)
                or defragment(draft, job, self.resize_after_s)
            ):
                draft.wait(job)
                if holds_up(job, snapshot.books):
                    break
                turns.skip_demand()
        grow(draft, self.resize_after_s)
        return draft.plan()
