"""Reservations: jobs wait for the time that they ask for, and are scheduled by it (seed 002).

The seed's HPC scheduler: every job requests a time. What it gets is a reservation of that length; when it is over, the
job is out, and has to request a longer one. The request is the job's time limit; with ``--time auto``, the next of the
increasing sequence t1 < t2 < ... of its script, under which it checkpoints at the end of each and so keeps its work.

Where the seed is silent: requests are granted first come, first served, with EASY backfill by requested times (see
`backfill`), as at the sites that its figures are from. A job whose reservation is over goes to the end of the queue:
its next request is a new one. Only so does a reservation that ends make room for those that wait. Whoever stops for any
other reason keeps the place of the last request. A job that requests no time passes nobody unless it is out of the way,
and when it leaves is estimated, if at all.
"""

from dataclasses import dataclass

from ebbtide_core.admission.queues import QueueKey, ShapedQueue
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import StopCause
from ebbtide_core.policies.backfill import admit_in_order, shape_in_time
from ebbtide_core.policies.draft import Draft
from ebbtide_core.policies.elastic import fit_ranges
from ebbtide_core.policies.policy import Policy
from ebbtide_core.resources.expected_releases import ExpectedReleases
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Reservation(Policy):
    """First come, first served, with EASY backfill by requested times. ``resize_after_s``: as for `Fifo`."""

    resize_after_s: float = 60.0

    def queue(self) -> ShapedQueue:
        """In order of requests."""
        return ShapedQueue(by_request, shape_in_time)

    def ranking(self, state: PoolState) -> Ranking:
        """Who leaves when."""
        return ExpectedReleases(state)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Admit in order of requests until one does not fit, then whoever does not delay it."""
        draft = Draft(snapshot)
        fit_ranges(draft)
        admit_in_order(draft, snapshot.ranking, _goes_to_the_end, self.resize_after_s)
        return draft.plan()


def by_request(job: Job) -> QueueKey:
    """By the time of the last request: when the job was submitted, or its last reservation was over."""
    stops = (attempt.stop for attempt in reversed(job.attempts) if attempt.stop is not None)
    ends = (stop.requested for stop in stops if stop.cause is StopCause.RESERVATION)
    return (next(ends, job.submitted), job.sequence, job.gpus_min, job.gpus_max)


def _goes_to_the_end(job: Job, head: Job) -> bool:
    return True
