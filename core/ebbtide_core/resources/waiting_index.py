"""Groups the jobs that wait for GPUs while there are bookings, so that bookings treat all jobs of a group alike.

Whether bookings keep a job out of the queue, and for which reason, depends on its request, its user and how long it
would stay. A hundred thousand jobs may wait, and the question comes up after every event. So it is asked only for jobs
that changed, once for each group, and only if bookings, nodes or the time may have changed the answer. What is then
left to do is spread over several passes.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from ebbtide_core.admission.queues import demand_of
from ebbtide_core.job.job import Job
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.types import JobId
from ebbtide_core.resources.bookings import Bookings, stay_s

TAKEN_IN_AT_ONCE: Final = 5000
"""Jobs that one `WaitingIndex.take_in` looks at: changed jobs, and jobs that were there before the first booking."""

Ask = Callable[[Job], str]
"""Returns why bookings keep a job out of the queue, in words; empty if they do not."""


@dataclass(slots=True)
class _Group:
    """Jobs that would stay equally long. ``reason`` says why bookings keep them out, None if that is not known yet."""

    jobs: dict[JobId, Job] = field(default_factory=dict)
    reason: str | None = None


@dataclass(slots=True)
class _SameDemand:
    """Jobs of one user and pool with the same request, in groups by how long they would stay, in seconds."""

    pool: str
    user: str
    stays: list[float] = field(default_factory=list)
    groups: dict[float, _Group] = field(default_factory=dict)

    def bands(self, bookings: Bookings) -> Iterator[tuple[list[_Group], float]]:
        """Yield the groups that would still run when the same bookings begin, and until which Unix time that is so."""
        starts, now, low = bookings.index.every.starts, bookings.now, 0
        while low < len(self.stays):
            before, high, until = bisect_left(starts, now + self.stays[low]), len(self.stays), math.inf
            if before < len(starts):
                high = bisect_right(self.stays, starts[before], low, key=lambda stay: now + stay)
                until = starts[before] - self.stays[high - 1]
            yield [self.groups[stay] for stay in self.stays[low:high]], until
            low = high


@mypyc_attr(allow_interpreted_subclasses=True)
class WaitingIndex:
    """The index of waiting jobs. ``changed`` are the jobs that changed since `take_in` last looked at them."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.changed: dict[JobId, Job] = {}
        self._first = deque(jobs)
        self._demands: dict[Hashable, _SameDemand] = {}
        self._place: dict[JobId, tuple[Hashable, float]] = {}
        self._stale: dict[Hashable, _SameDemand] = {}
        """The demands with a group whose answer is missing or may be out of date."""
        self._moves: dict[JobId, Job] = {}
        """Jobs that may have to be taken out of the queue or put back."""
        self.rounds = 0
        """The number of calls of `take_in` that found changed jobs."""
        self._known: Hashable = None
        self._ask: Ask | None = None
        self._asked, self._due = -math.inf, math.inf
        """Unix times: the last call of `ask`, and after which time alone may change an answer."""

    @property
    def is_behind(self) -> bool:
        """Whether work is left from earlier calls."""
        return bool(self._first or self.changed or self._stale or self._moves)

    def take_in(self, blocked: Collection[JobId]) -> None:
        """Look at some of the changed jobs; ``blocked`` are the jobs that bookings keep out of the queue."""
        self.rounds += bool(self.changed)
        jobs = [self.changed.pop(id) for id in list(islice(self.changed, TAKEN_IN_AT_ONCE))]
        jobs += [self._first.popleft() for _ in range(min(len(self._first), TAKEN_IN_AT_ONCE - len(jobs)))]
        for job in jobs:
            self._put(job, job.gpus_min > 0 and (job.queued is not None or _waits_outside(job, blocked)))

    def _put(self, job: Job, waits: bool) -> None:
        place = ((job.pool, job.user, demand_of(job)), stay_s(job, 0.0)) if waits else None
        if (before := self._place.get(job.id)) != place:
            if before is not None:
                self._leave(job, *before)
            if place is not None:
                self._join(job, *place)
        if place is None:
            self._moves[job.id] = job
        elif (reason := self._demands[place[0]].groups[place[1]].reason) is not None:
            self._tell(job, reason)

    def _leave(self, job: Job, key: Hashable, stay: float) -> None:
        demand = self._demands[key]
        group = demand.groups[stay]
        del group.jobs[job.id], self._place[job.id]
        if not group.jobs:
            del demand.groups[stay], demand.stays[bisect_left(demand.stays, stay)]
        if not demand.groups:
            del self._demands[key]
            self._stale.pop(key, None)

    def _join(self, job: Job, key: Hashable, stay: float) -> None:
        demand = self._demands.get(key)
        if demand is None:
            demand = self._demands[key] = _SameDemand(job.pool, job.user)
        if stay not in demand.groups:
            insort(demand.stays, stay)
            demand.groups[stay] = _Group()
            self._stale[key] = demand
        demand.groups[stay].jobs[job.id] = job
        self._place[job.id] = key, stay

    def _tell(self, job: Job, reason: str) -> None:
        if reason:
            job.reason = reason
        self._moves[job.id] = job

    def ask(self, bookings: Bookings, known: Hashable, asker: Callable[[], Ask], most: int) -> None:
        """Ask about the groups whose answer may have changed, ``most`` times or until the demand under way is done.

        ``known`` is all that the answers depend on, apart from jobs and time; what ``asker`` returns is used as long as
        it stays the same.
        """
        ask = self._ask
        if ask is None or known != self._known:
            ask = self._ask = asker()
        if known != self._known or bookings.now > self._due or bookings.now < self._asked:
            self._stale |= self._demands
            self._known, self._due = known, math.inf
        self._asked = bookings.now
        for key in list(self._stale):
            if most <= 0:
                return
            demand = self._stale.pop(key)
            for groups, until in demand.bands(bookings):
                reason, most = ask(next(iter(groups[0].jobs.values()))), most - 1
                self._due = min(self._due, until)
                for group in groups:
                    if group.reason != reason:
                        if group.reason is None or bool(group.reason) != bool(reason):
                            self._moves |= group.jobs
                        group.reason = reason
                        for job in group.jobs.values() if reason else ():
                            job.reason = reason

    def moves(self, blocked: Collection[JobId], most: int) -> Iterator[tuple[Job, str]]:
        """Yield up to ``most`` jobs to take out of the queue, with the reason, or to put back, with an empty reason."""
        for id in list(self._moves):
            if most <= 0:
                return
            job, reason = self._moves.pop(id), self.reason(id)
            if bool(reason) != (id in blocked):
                most -= 1
                yield job, reason

    def reason(self, id: JobId) -> str:
        """Return why bookings keep the job out, as last asked; empty if they do not, or if that is not known yet."""
        place = self._place.get(id)
        return (self._demands[place[0]].groups[place[1]].reason or "") if place is not None else ""

    def alike(self, job: Job) -> Hashable:
        """Return a key that the jobs of one group share; ``job`` must wait, and the key holds until it changes."""
        return self._place[job.id]

    def jobs_of(self, user: str, pool: str) -> Iterator[Job]:
        """Yield the jobs of that user and pool that wait for GPUs, in no order."""
        for demand in self._demands.values():
            if demand.user == user and demand.pool == pool:
                for group in demand.groups.values():
                    yield from group.jobs.values()


def _waits_outside(job: Job, blocked: Collection[JobId]) -> bool:
    """Return whether ``job`` waits, and bookings keep it out of the queue."""
    return job.id in blocked and job.waiting and job.planned is None
