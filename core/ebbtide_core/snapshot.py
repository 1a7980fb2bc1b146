"""Defines what a policy reads, a `Snapshot`, and what it answers, a `Plan`."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from ebbtide_core.admission.queues import Queue
from ebbtide_core.estimates.work import Estimate, Speedup, remaining
from ebbtide_core.job.job import Job
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import Allocation, JobId, NodeId
from ebbtide_core.reserving.live import next_reservation
from ebbtide_core.resources.books import Books, Node
from ebbtide_core.resources.came_back import CameBack
from ebbtide_core.resources.elastic_jobs import ElasticJobs
from ebbtide_core.resources.pools import PoolState


class Snapshot:
    """A read-only view of one pool at Unix time ``now``, of indexes that are kept up to date, without copies.

    Its room is that once every attempt that was asked to stop has stopped, less what is kept for preemptors.
    """

    def __init__(self, pool: PoolState, now: float) -> None:
        self._pool = pool
        self.now = now
        self.books: Books = pool.books
        self.nodes: dict[NodeId, Node] = pool.books.usable
        self.where = pool.where
        """The pool in words, such as `` in pool a``; empty if the cluster has only one pool."""
        self.has_curves = bool(pool.rates.curves)
        """Whether the speed of any script was measured at several sizes."""

    def job(self, job: JobId) -> Job:
        """Return the job with that id; policies must not change it."""
        return self._pool.jobs[job]

    @property
    def queue(self) -> Queue:
        """The jobs that may be placed, in the order that the policy defines; policies must not change it."""
        return self._pool.queue

    @property
    def ranking(self) -> Any:
        """The index that the policy defined for itself; policies must not change it."""
        return self._pool.ranking

    def waiting(self) -> Iterator[Job]:
        """Iterate over the jobs that may be placed, in queue order."""
        return iter(self._pool.queue)

    def planned(self) -> list[Job]:
        """Return the jobs that are promised room: running and not asked to stop, or waiting for room to be freed."""
        return sorted(self._pool.planned.values(), key=_sequence)

    def planned_on(self, node: NodeId) -> list[Job]:
        """Return the jobs that are promised room on ``node``."""
        return sorted((self._pool.jobs[id] for id in self.nodes[node].planned), key=_sequence)

    def share_in_service(self, job: Job) -> int:
        """Return what ``job`` is promised of GPUs that are on offer on nodes that can be used, in parts."""
        pieces = job.planned.nodes if job.planned is not None else ()
        known = [(piece, self.nodes[piece.node].slices) for piece in pieces if piece.node in self.nodes]
        return sum([gpu.share for piece, on_offer in known for gpu in piece.gpus if gpu.gpu in on_offer])

    def remaining(self, job: Job) -> Estimate | None:
        """Return the work that ``job`` still has to do, or None if it is not known."""
        return remaining(job, self.now, self._pool.history, self._pool.speedup)

    def reservation(self, job: Job) -> float | None:
        """Return the running time in seconds at which a reservation from now would end; None without ``time_auto``."""
        if not job.spec.time_auto:
            return None
        return next_reservation(self._pool.history.run_times(job), job.running_s(self.now))[0]

    @property
    def speedup(self) -> Speedup:
        """The speed of a job by its share of GPUs, for scripts of which nothing was measured."""
        return self._pool.speedup

    @property
    def came_back(self) -> CameBack:
        """The unfinished jobs that came back from a suspension, so that their restart cost is known."""
        return self._pool.came_back

    def speedup_of(self, job: Job) -> Speedup:
        """Return the speed of ``job`` by its share of GPUs, as measured of its script if it was measured."""
        return (self._pool.curve(job) if self.has_curves else None) or self._pool.speedup

    def most_of_use(self, job: Job) -> int:
        """Return the largest size of use to ``job``, in parts, or its largest size if no curve was measured."""
        return self._pool.most_of_use(job)

    def elastic(self) -> list[Job]:
        """Return the jobs that are promised room and whose GPU count may vary."""
        return sorted(self._pool.elastic.jobs.values(), key=_sequence)

    @property
    def elastic_jobs(self) -> ElasticJobs:
        """The same jobs, by what can be done about their size; policies must not change it."""
        return self._pool.elastic

    def out_of_range(self) -> list[Job]:
        """Return the running jobs whose GPU count is outside their range, because a user changed it."""
        return list(self._pool.resizing.values())


def _sequence(job: Job) -> int:
    return job.sequence


@frozen
class Placement:
    """A policy's request to run a job on ``allocation``, with the reason in words.

    With ``claim``, the part of ``allocation`` that is being freed is kept for the job. A ``sticky`` attempt is never
    preempted (`Hybrid`).
    """

    allocation: Allocation
    reason: str
    claim: bool = False
    sticky: bool = False


@frozen
class Eviction:
    """A policy's request to stop a job so that ``for_job`` can run (None: for no job in particular)."""

    reason: str
    for_job: JobId | None


@frozen
class Plan:
    """A policy's answer: which jobs should run where. Jobs that it does not name stay as they are.

    ``holds`` are the jobs that the system holds, and why. ``waits`` says why a job still waits. ``recheck_at`` is the
    Unix time at which the policy wants to be asked again if nothing else happens.
    """

    placements: Mapping[JobId, Placement] = field(default_factory=dict)
    evictions: Mapping[JobId, Eviction] = field(default_factory=dict)
    waits: Mapping[JobId, str] = field(default_factory=dict)
    holds: Mapping[JobId, str] = field(default_factory=dict)
    recheck_at: float | None = None
