"""The GPUs that moldable and malleable policies divide, and the jobs among which they divide them (seed 001, §IV).

Under a moldable policy these jobs, called the pool here, are the waiting ones. Under a malleable policy the running
jobs that may be resized now also belong to the pool. Jobs without GPUs do not: they start where there are CPUs and
memory.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from ebbtide_core.admission.queues import DemandQueue, QueueKey
from ebbtide_core.estimates.work import estimated_at, remaining
from ebbtide_core.job.job import Job
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.types import WHOLE, Allocation, GpuId, JobId, NodeId
from ebbtide_core.planning.draft import Draft
from ebbtide_core.resources.books import Books
from ebbtide_core.resources.eligibility import could_run, largest
from ebbtide_core.resources.pools import PoolState
from ebbtide_core.snapshot import Snapshot

Wanted = list[tuple[Job, int]]
"""Jobs and the parts of GPUs that each should get, in the order in which they choose their places."""


@dataclass(frozen=True, slots=True)
class Supply:
    """What a pool can divide.

    ``vacant`` is the number of GPUs that no job outside the pool uses; ``available`` is all that is free, in parts.
    """

    vacant: int
    available: int


Divide = Callable[[Draft, Sequence[Job], Supply], Wanted | None]
"""Decide how much each job of the pool gets, if all can have their smallest size and more; jobs in order of arrival.

None means that the jobs are to share GPUs, equally many jobs on each (see `ebbtide_core.planning.balance`).
"""


UNKNOWN_WORK_S: Final = 3600.0
"""The assumed work of a job, in seconds on one GPU, if the work of no job is known."""


def typical(works: Iterable[float | None]) -> float:
    """Return the work to assume for a job of unknown work: the mean of the known ``works``, else one hour."""
    known = [work for work in works if work is not None]
    return fmean(known) if known else UNKNOWN_WORK_S


@mypyc_attr(allow_interpreted_subclasses=True)
class Arrivals(DemandQueue):
    """The waiting jobs in order of arrival; ``users`` counts those of each user."""

    def __init__(self) -> None:
        super().__init__(by_arrival_only)
        self.users: dict[str, int] = {}

    def add(self, key: QueueKey, job: Job) -> None:
        """Insert ``job`` among the jobs with the same demand."""
        super().add(key, job)
        self.users[job.user] = self.users.get(job.user, 0) + 1

    def remove(self, key: QueueKey, job: Job) -> None:
        """Remove ``job``, which is in the queue with ``key``."""
        super().remove(key, job)
        self.users[job.user] -= 1
        if not self.users[job.user]:
            del self.users[job.user]

    def smallest(self, books: Books) -> int:
        """Return the sum of the smallest sizes of the jobs that could run, in parts."""
        return sum([job.gpus_min * count for job, count in self.kinds() if job.gpus_min and could_run(job, books)])

    def with_gpus(self, books: Books) -> list[Job]:
        """Return the jobs that need GPUs and could run."""
        return [job for job in self if job.gpus_min and could_run(job, books)]


def by_arrival_only(job: Job) -> QueueKey:
    """Order jobs by submission, whatever happened to them since; the key includes the size, which may change."""
    return (job.sequence, job.gpus_min, job.gpus_max)


def reach(job: Job, snapshot: Snapshot) -> int:
    """Return the largest size that ``job`` can use, in parts: within its range, and within what its node has."""
    most = snapshot.most_of_use(job) if snapshot.has_curves else job.gpus_max
    on_one = largest(job, snapshot.books) * WHOLE
    return most if most <= on_one or job.spec.most_nodes > 1 else max(job.gpus_min, on_one)


def enough_for_all(jobs: Sequence[Job], most: Sequence[int], here: Supply, measured: bool) -> Wanted | None:
    """Give each of ``jobs`` the ``most`` that it can use; return None if the vacant GPUs are too few for that.

    If speeds were ``measured``, a job that already has more than it can use keeps it while no other job needs it.
    """
    vacant = here.vacant * WHOLE
    if sum(most) > vacant:
        return None
    if measured:
        kept = [max(size, min(job.gpus_max, _has(job))) for job, size in zip(jobs, most, strict=True)]
        most = kept if sum(kept) <= vacant else most
    return list(zip(jobs, most, strict=True))


def _has(job: Job) -> int:
    return job.planned.share if job.planned is not None else 0


@mypyc_attr(allow_interpreted_subclasses=True)
class PlacedJob:
    """A job with room promised to it, and cached answers to what policies often ask about it."""

    __slots__ = (
        "_known",
        "_left",
        "_since",
        "_speed",
        "_state",
        "gpu",
        "in_range",
        "job",
        "planned",
        "preemptible",
        "running",
        "sequence",
        "share",
        "smallest",
        "started",
    )

    def __init__(self, state: PoolState, job: Job, planned: Allocation) -> None:
        self._state = state
        self.job = job
        self.sequence = job.sequence
        self.take(planned)

    def take(self, planned: Allocation) -> None:
        """Record ``planned`` as the job's room."""
        self.planned, self.share, self.smallest = planned, planned.share, self.job.gpus_min
        self.gpu = planned.gpu_ids[0] if 0 < self.share < WHOLE else None
        """The GPU of which the job has a part; None if it has whole GPUs."""
        self.learn()

    def learn(self) -> None:
        """Record what policies ask of the job in every pass, and drop what was cached about its work."""
        job, self._known = self.job, False
        self.running, self.preemptible = job.running, job.preemptible
        self.started = job.attempts[-1].started if job.attempts else None
        self.in_range = job.gpus_min <= self.share <= job.gpus_max

    @property
    def even(self) -> bool:
        """Whether the job has its smallest size."""
        return self.share == self.smallest

    def left(self, now: float) -> float | None:
        """Return the work that the job still has to do, in seconds on one GPU; None if unknown.

        The result is the same to the last digit before and after a restart that took no time. Otherwise, where two
        sizes are equally good, rounding errors would make jobs resize again and again at the same moment.
        """
        if not self._known:
            self._learn(now)
        return self._left if self._since is None else max(0.0, self._running(now))

    def speed(self, now: float) -> float:
        """Return the work that the job does per second, in seconds on one GPU."""
        if not self._known:
            self._learn(now)
        return self._speed

    def nearly_done(self, now: float, work_s: float) -> bool:
        """Return whether the job runs and has ``work_s`` of work left at most, or exceeds its estimate by no more."""
        if not self._known:
            self._learn(now)
        return self._since is not None and abs(self._running(now)) <= work_s

    def _running(self, now: float) -> float:
        """Return the work left of a running job; it is negative once the job has exceeded its estimate."""
        assert self._left is not None
        assert self._since is not None
        return self._left - (now - self._since) * self._speed

    def _learn(self, now: float) -> None:
        state, job = self._state, self.job
        self._known = True
        self._speed = ((job.attempts[-1].speedup if job.attempts else None) or state.speedup)(self.share)
        # For a running job, keep the work left at the time of the estimate, and that time; else the work left now.
        since = estimated_at(job) if job.running else None
        estimate = remaining(job, now if since is None else since, state.history, state.speedup)
        self._left = None if estimate is None else estimate.work_s
        self._since = None if estimate is None else since


@mypyc_attr(allow_interpreted_subclasses=True)
class Members:
    """The jobs with GPUs promised to them, in order of arrival."""

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._known: dict[JobId, PlacedJob] = {}
        self._uneven: set[JobId] = set()
        self.all: list[PlacedJob] = []
        self.returning: dict[JobId, Job] = {}
        """Jobs that are being preempted, have no room promised, and will wait again."""

    def left(self, job: Job, now: float) -> float | None:
        """Return the work that ``job``, with room or without, has left, in seconds on one GPU; None if unknown."""
        member = self._known.get(job.id)
        if member is not None:
            return member.left(now)
        estimate = remaining(job, now, self._state.history, self._state.speedup)
        return None if estimate is None else estimate.work_s

    def share(self, job: Job) -> int:
        """Return the room of ``job``, in parts; 0 if it has none."""
        member = self._known.get(job.id)
        return 0 if member is None else member.share

    @property
    def even(self) -> bool:
        """Whether all members have their smallest sizes."""
        return not self._uneven

    def update(self, job: Job) -> None:
        """Add, update or remove ``job`` according to its state."""
        known, planned = self._known.get(job.id), job.planned
        if planned is None or not job.gpus_max:
            if _returns(job):
                self.returning[job.id] = job
            elif self.returning:
                self.returning.pop(job.id, None)
            if known is not None:
                del self._known[job.id]
                del self.all[bisect_left(self.all, known.sequence, key=_sequence)]
                self._uneven.discard(job.id)
            return
        if self.returning:
            self.returning.pop(job.id, None)
        if known is None:
            known = self._known[job.id] = PlacedJob(self._state, job, planned)
            insort(self.all, known, key=_sequence)
        elif known.planned is planned and known.smallest == job.gpus_min:
            known.learn()
            return
        else:
            known.take(planned)
        if known.even:
            self._uneven.discard(job.id)
        else:
            self._uneven.add(job.id)


def _returns(job: Job) -> bool:
    """Return whether ``job``, which has no room promised, will wait again once what it holds is free."""
    if job.holding is None or job.end is not None or job.held_by is not None or not job.gpus_max:
        return False
    stop = job.attempts[-1].stop
    return stop is not None and not stop.cause.final


def _sequence(member: PlacedJob) -> int:
    return member.sequence


def supply(draft: Draft, members: Sequence[PlacedJob] = ()) -> Supply:
    """Return what a pool would have if its ``members`` gave back what they have."""
    kept = _kept_for_others(draft, members)
    idle, shared = _idle(draft, kept), _shared(draft, kept)
    available = idle * WHOLE + sum(WHOLE - share for share in shared.values())
    for member in members:
        if kept and not kept.keys().isdisjoint(member.planned.gpu_ids):
            continue
        available += member.share
        if (gpu := member.gpu) is None:
            idle += member.share // WHOLE
            continue
        shared[gpu] -= member.share
        idle += shared[gpu] == 0
    return Supply(idle, available)


def places_for(size: int, draft: Draft, members: Sequence[PlacedJob]) -> int:
    """Return how many jobs of ``size`` parts would have room if ``members`` gave back what they have."""
    kept = _kept_for_others(draft, members)
    shared = _shared(draft, kept)
    members = [member for member in members if not kept or kept.keys().isdisjoint(member.planned.gpu_ids)]
    for member in members:
        if member.gpu is not None:
            shared[member.gpu] -= member.share
    idle = _idle(draft, kept) + sum([member.share // WHOLE for member in members])
    parts = [WHOLE - share for share in shared.values()]
    if size < WHOLE:
        return idle * (WHOLE // size) + sum([part // size for part in parts])
    return (idle + parts.count(WHOLE)) * WHOLE // size


def _kept_for_others(draft: Draft, members: Sequence[PlacedJob]) -> dict[GpuId, NodeId]:
    """Return the GPUs, each with its node, that are booked now by users none of whose jobs is a member or waits."""
    booked, queue = draft.snapshot.books.booked, draft.snapshot.queue
    if booked is None or not (begun := booked.begun):
        return {}
    assert isinstance(queue, Arrivals)
    users = queue.users.keys() | {member.job.user for member in members}
    return {piece.gpu: piece.node for booking in begun if booking.user not in users for piece in booking.gpus}


def _idle(draft: Draft, kept: Mapping[GpuId, NodeId]) -> int:
    """Return the number of idle GPUs that are not ``kept``."""
    trial = draft.trial
    there = [(gpu, node) for gpu, node in kept.items() if node in trial.nodes and gpu in trial.nodes[node].slices]
    return trial.room.total - sum([trial.use(node).share(gpu) == 0 for gpu, node in there])


def _shared(draft: Draft, kept: Mapping[GpuId, NodeId]) -> dict[GpuId, int]:
    """Return the healthy GPUs, without those that are ``kept``, of which only parts are promised, and these parts."""
    trial = draft.trial
    return {
        gpu: share
        for id in trial.room.shared
        for gpu, share in trial.use(id).shares.items()
        if gpu in trial.nodes[id].slices and gpu not in kept
    }
