"""Reservations: jobs request a run time and are scheduled by it (seed 002).

This is the seed's HPC scheduler: every job requests a time and gets a reservation of that length; when the reservation
ends, the job stops and has to request a longer one. The request is the job's time limit; with ``--time auto`` it is the
next of its script's increasing sequence t1 < t2 < ..., with a checkpoint at the end of each so that no work is lost.

Where the seed is silent: requests are granted first come, first served, with EASY backfill by requested times (see
`backfill`), as at the sites that the seed's figures are from. A job whose reservation ended goes to the end of the
queue, because its next request is a new one; otherwise the end of a reservation would make no room for waiting jobs. A
job that stops for any other reason keeps the place of its last request. A job that requests no time passes another job
only if it does not use that job's room; when it leaves can at best be estimated.
"""

from dataclasses import dataclass

from ebbtide_core.admission.queues import DemandQueue, QueueKey
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import StopCause
from ebbtide_core.planning.backfill import admit_in_order, demand_in_time
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.elastic import fit_ranges
from ebbtide_core.planning.policy import Policy
from ebbtide_core.resources.expected_releases import ExpectedReleases
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Reservation(Policy):
    """First come, first served, with EASY backfill by requested times. ``resize_after_s``: as for `Fifo`."""

    resize_after_s: float = 60.0

    def queue(self) -> DemandQueue:
        """Order waiting jobs by their last requests."""
        return DemandQueue(by_request, demand_in_time)

    def ranking(self, state: PoolState) -> Ranking:
        """Index the expected releases."""
        return ExpectedReleases(state)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Admit jobs in order of requests until one does not fit, then those that do not delay it."""
        draft = Draft(snapshot)
        fit_ranges(draft)
        admit_in_order(draft, snapshot.ranking, _goes_to_the_end, self.resize_after_s)
        return draft.plan()


def by_request(job: Job) -> QueueKey:
    """Order jobs by their last request: when the job was submitted, or its last reservation ended."""
    stops = (attempt.stop for attempt in reversed(job.attempts) if attempt.stop is not None)
    ends = (stop.requested for stop in stops if stop.cause is StopCause.RESERVATION)
    return (next(ends, job.submitted), job.sequence, job.gpus_min, job.gpus_max)


def _goes_to_the_end(job: Job, head: Job) -> bool:
    return True
