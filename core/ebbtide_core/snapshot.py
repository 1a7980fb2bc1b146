"""What a policy sees, and what it answers."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from ebbtide_core.admission.queues import Queue
from ebbtide_core.estimates.curves import largest_of_use
from ebbtide_core.estimates.work import Estimate, Speedup, remaining
from ebbtide_core.job.job import Job
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import Allocation, JobId, NodeId
from ebbtide_core.reserving.live import next_reservation
from ebbtide_core.resources.books import Books, Node
from ebbtide_core.resources.pools import PoolState


class Snapshot:
    """A read-only view of one pool at ``now``: indexes that are kept up to date, never copies.

    Room is seen as it will be once everything that was asked to stop has stopped, less what is kept for preemptors.
    """

    def __init__(self, pool: PoolState, now: float) -> None:
        self._pool = pool
        self.now = now
        self.books: Books = pool.books
        self.nodes: dict[NodeId, Node] = pool.books.usable
        self.where = pool.where
        """In which pool this is, in words; empty if there is no other."""
        self.has_curves = bool(pool.rates.curves)
        """Whether the speed of any script was measured at several sizes."""

    def job(self, job: JobId) -> Job:
        """The job of that id; not to be changed."""
        return self._pool.jobs[job]

    @property
    def queue(self) -> Queue:
        """The jobs that may be placed, as the policy wanted them ordered; not to be changed."""
        return self._pool.queue

    @property
    def ranking(self) -> Any:
        """The index that the policy defined for itself; not to be changed."""
        return self._pool.ranking

    def waiting(self) -> Iterator[Job]:
        """The jobs that may be placed, in queue order."""
        return iter(self._pool.queue)

    def planned(self) -> list[Job]:
        """The jobs with room promised to them: running and not asked to stop, or waiting for room to be freed."""
        return sorted(self._pool.planned.values(), key=_sequence)

    def planned_on(self, node: NodeId) -> list[Job]:
        """Those of one node."""
        return sorted((self._pool.jobs[id] for id in self.nodes[node].planned), key=_sequence)

    def remaining(self, job: Job) -> Estimate | None:
        """The work that ``job`` still has to do, as far as it is known."""
        return remaining(job, self.now, self._pool.history, self._pool.speedup)

    def reservation(self, job: Job) -> float | None:
        """Until which running time ``job`` would reserve if it started now, in seconds; None if it does not reserve."""
        if not job.spec.time_auto:
            return None
        return next_reservation(self._pool.history.run_times(job), job.running_s(self.now))[0]

    @property
    def speedup(self) -> Speedup:
        """How fast a job gets with its share of GPUs if nothing was measured of its script."""
        return self._pool.speedup

    @property
    def came_back(self) -> Mapping[JobId, Job]:
        """The unfinished jobs that came back from a suspension, so that it is known what a restart costs them."""
        return self._pool.came_back

    def speedup_of(self, job: Job) -> Speedup:
        """How fast ``job`` gets with its share of GPUs, as it was measured of its script."""
        return (self._pool.curve(job) if self.has_curves else None) or self._pool.speedup

    def most_of_use(self, job: Job) -> int:
        """The greatest size of ``job``, or the greatest that is of use to it, if that was measured of its script."""
        curve = self._pool.curve(job) if self.has_curves else None
        return job.gpus_max if curve is None else largest_of_use(job.sizes(), curve)

    def elastic(self) -> list[Job]:
        """The jobs with room promised to them whose GPU count may vary."""
        return sorted(self._pool.elastic.values(), key=_sequence)

    def out_of_range(self) -> list[Job]:
        """Running jobs with more or fewer GPUs than they may have, because a user changed that."""
        return list(self._pool.resizing.values())


def _sequence(job: Job) -> int:
    return job.sequence


@frozen
class Placement:
    """That a job should run on ``allocation``, and why.

    With ``claim``, what is being freed of it is kept for the job. A ``sticky`` attempt is never preempted (`Hybrid`).
    """

    allocation: Allocation
    reason: str
    claim: bool = False
    sticky: bool = False


@frozen
class Eviction:
    """That a job should not run, so that ``for_job`` can."""

    reason: str
    for_job: JobId | None


@frozen
class Plan:
    """What should run where. Jobs that it does not name stay as they are.

    ``holds`` are the jobs that shall not start again by themselves, and why. ``waits`` says why a job still waits;
    ``recheck_at`` when the policy wants to look again if nothing else happens.
    """

    placements: Mapping[JobId, Placement] = field(default_factory=dict)
    evictions: Mapping[JobId, Eviction] = field(default_factory=dict)
    waits: Mapping[JobId, str] = field(default_factory=dict)
    holds: Mapping[JobId, str] = field(default_factory=dict)
    recheck_at: float | None = None
