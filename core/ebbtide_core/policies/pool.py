"""What there is to divide, and among whom: the pool of moldable and malleable policies (seed 001, §IV).

Under a moldable policy the pool are the waiting jobs. Under a malleable one it is also those that run and may be
resized now. Jobs without GPUs belong to none: they start where there are CPUs and memory.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from ebbtide_core.admission.queues import QueueKey, ShapedQueue
from ebbtide_core.estimates.work import estimated_at, remaining
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, GpuId, JobId
from ebbtide_core.policies.draft import Draft
from ebbtide_core.resources.books import Books
from ebbtide_core.resources.eligibility import could_run, largest
from ebbtide_core.resources.pools import PoolState
from ebbtide_core.snapshot import Snapshot

Wanted = list[tuple[Job, int]]
"""Jobs and the parts of GPUs that each is to have, those first that choose their place first."""


@dataclass(frozen=True, slots=True)
class Supply:
    """What a pool has: GPUs that nobody outside of it uses, and all that is free, in parts."""

    vacant: int
    available: int


Divide = Callable[[Draft, Sequence[Job], Supply], Wanted | None]
"""Who of the pool gets how much, if all of them can have their smallest size and more; the pool in order of arrival.

None if shares of GPUs are to be given to equally many jobs per GPU (see `ebbtide_core.policies.balance`).
"""


UNKNOWN_WORK_S: Final = 3600.0
"""What is taken for the work of a job, in seconds on one GPU, if nothing is known of any."""


def typical(works: Iterable[float | None]) -> float:
    """What is taken for the work of a job of which nothing is known: the mean of the others, else an hour."""
    known = [work for work in works if work is not None]
    return fmean(known) if known else UNKNOWN_WORK_S


class Arrivals(ShapedQueue):
    """The waiting jobs in order of arrival."""

    def __init__(self) -> None:
        super().__init__(by_arrival_only)

    def smallest(self, books: Books) -> int:
        """The sum of the smallest sizes of those that could run, in parts."""
        return sum([job.gpus_min * count for job, count in self.kinds() if job.gpus_min and could_run(job, books)])

    def with_gpus(self, books: Books) -> list[Job]:
        """Those that need GPUs and could run."""
        return [job for job in self if job.gpus_min and could_run(job, books)]


def by_arrival_only(job: Job) -> QueueKey:
    """In the order in which jobs were submitted, whatever happened since; with the size, which may change."""
    return (job.sequence, job.gpus_min, job.gpus_max)


def reach(job: Job, snapshot: Snapshot) -> int:
    """The most that ``job`` could make use of, in parts: no more than its range, and no more than its node has."""
    most = snapshot.most_of_use(job) if snapshot.has_curves else job.gpus_max
    on_one = largest(job, snapshot.books) * WHOLE
    return most if most <= on_one or job.spec.most_nodes > 1 else max(job.gpus_min, on_one)


def enough_for_all(jobs: Sequence[Job], most: Sequence[int], here: Supply, measured: bool) -> Wanted | None:
    """Each of ``jobs`` with the ``most`` that it could make use of; None if that is more than there is.

    If any were ``measured``, who has more already than is of use to it keeps that as long as nobody else needs it.
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


class PlacedJob:
    """A job with room promised to it, and what policies ask about it again and again."""

    __slots__ = ("_known", "_left", "_since", "_speed", "_state", "job", "planned", "sequence", "share", "smallest")

    def __init__(self, state: PoolState, job: Job, planned: Allocation) -> None:
        self._state = state
        self.job = job
        self.sequence = job.sequence
        self.take(planned)

    def take(self, planned: Allocation) -> None:
        """Note that ``planned`` is its room."""
        self.planned, self.share, self.smallest = planned, planned.share, self.job.gpus_min
        self._known = False

    def forget(self) -> None:
        """Note that what is known of its work may have changed."""
        self._known = False

    @property
    def even(self) -> bool:
        """Whether it has its smallest size."""
        return self.share == self.smallest

    def left(self, now: float) -> float | None:
        """The work that it still has to do, in seconds on one GPU; None if nothing tells.

        To the last digit the same before and after a restart that took no time: else where two sizes are equally good,
        rounding errors would have jobs resized again and again at the same moment.
        """
        if not self._known:
            self._learn(now)
        return self._left if self._since is None else max(0.0, self._running(now))

    def speed(self, now: float) -> float:
        """The work that it does per second."""
        if not self._known:
            self._learn(now)
        return self._speed

    def nearly_done(self, now: float, work_s: float) -> bool:
        """Whether, running, it has ``work_s`` or less to do. Who runs on for as long beyond the estimate is not."""
        if not self._known:
            self._learn(now)
        return self._since is not None and abs(self._running(now)) <= work_s

    def _running(self, now: float) -> float:
        """The work that it still has to do while it runs, less than 0 beyond the estimate."""
        assert self._left is not None
        assert self._since is not None
        return self._left - (now - self._since) * self._speed

    def _learn(self, now: float) -> None:
        state, job = self._state, self.job
        self._known = True
        self._speed = ((job.attempts[-1].speedup if job.attempts else None) or state.speedup)(self.share)
        # While it runs, what was left when that became known, and when; while it does not, what is left.
        since = estimated_at(job) if job.running else None
        estimate = remaining(job, now if since is None else since, state.history, state.speedup)
        self._left = None if estimate is None else estimate.work_s
        self._since = None if estimate is None else since


class Members:
    """The jobs with GPUs promised to them, in order of arrival."""

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._known: dict[JobId, PlacedJob] = {}
        self._uneven: set[JobId] = set()
        self.all: list[PlacedJob] = []
        self.returning: dict[JobId, Job] = {}
        """Those that step aside, have no room promised, and will wait again."""

    def left(self, job: Job, now: float) -> float | None:
        """The work that ``job``, with room or without, has left, in seconds on one GPU; None if nothing tells."""
        member = self._known.get(job.id)
        if member is not None:
            return member.left(now)
        estimate = remaining(job, now, self._state.history, self._state.speedup)
        return None if estimate is None else estimate.work_s

    def share(self, job: Job) -> int:
        """The room of ``job``, in parts; 0 if it has none."""
        member = self._known.get(job.id)
        return 0 if member is None else member.share

    @property
    def even(self) -> bool:
        """Whether all of them have their smallest sizes."""
        return not self._uneven

    def update(self, job: Job) -> None:
        """Take ``job`` in, or out."""
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
            known.forget()
            return
        else:
            known.take(planned)
        if known.even:
            self._uneven.discard(job.id)
        else:
            self._uneven.add(job.id)


def _returns(job: Job) -> bool:
    """Whether ``job``, which has no room promised, waits as soon as what it held is free."""
    if job.holding is None or job.ending is not None or job.held_by is not None or not job.gpus_max:
        return False
    stop = job.attempts[-1].stop
    return stop is not None and not stop.cause.final


def _sequence(member: PlacedJob) -> int:
    return member.sequence


def supply(draft: Draft, members: Sequence[PlacedJob] = ()) -> Supply:
    """What a pool has if ``members`` of it gave back what they have."""
    idle, shared = draft.trial.room.total, _shared(draft)
    available = idle * WHOLE + sum(WHOLE - share for share in shared.values())
    for member in members:
        available += member.share
        if member.share >= WHOLE:
            idle += member.share // WHOLE
            continue
        [gpu] = member.planned.gpu_ids
        shared[gpu] -= member.share
        idle += shared[gpu] == 0
    return Supply(idle, available)


def _shared(draft: Draft) -> dict[GpuId, int]:
    """The healthy GPUs that are promised in part, and what of them is, in parts."""
    trial = draft.trial
    return {
        gpu: share
        for id in trial.room.shared
        for gpu, share in trial.use(id).shares.items()
        if gpu in trial.nodes[id].slices
    }
