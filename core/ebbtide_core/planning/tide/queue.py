"""The queue of `Tide`: by priority, size and place, those that are expected to be done soonest first."""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from ebbtide_core.admission.queues import Queue, QueueKey, where_of
from ebbtide_core.estimates.outlook import Kind, Outlook, Outlooks, kinds_of
from ebbtide_core.job.job import Job
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.types import JobId
from ebbtide_core.planning.tide.prices import weight_of

Entry = tuple[float, int, Job]
"""A job by its outlook, or by the Unix time at which it is due; then by submission."""

Alike = tuple[int, Hashable]
"""The smallest size of jobs, in parts, and what keeps them to some of the nodes (`where_of`)."""


@dataclass(slots=True, eq=False)
class Line:
    """The waiting jobs of one priority that are alike: soonest done first, and by when they are due."""

    soonest: list[Entry] = field(default_factory=list)
    by_due: list[Entry] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Place:
    """Where a job stands in the queue, and why."""

    priority: int
    alike: Alike
    outlook: Outlook
    soonest: Entry
    due: Entry
    kinds: tuple[Kind, ...]


@mypyc_attr(allow_interpreted_subclasses=True)
class TideQueue(Queue):
    """The waiting jobs by their outlooks when they came, or when these last changed much.

    A job is due once the time since its submit reaches ``bound`` times its expected length. Adding or removing a job
    costs a binary search. `TideIndex` sets ``outlooks``.
    """

    outlooks: Outlooks

    def __init__(self, bound: float) -> None:
        super().__init__(_identity)
        self.bound = bound
        self.by_priority: dict[int, dict[Alike, Line]] = {}
        self._places: dict[JobId, _Place] = {}
        self._of_kind: dict[Kind, dict[JobId, Job]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Job]:
        for _, lines in sorted(self.by_priority.items()):
            yield from (job for _, _, job in sorted(entry for line in lines.values() for entry in line.soonest))

    def add(self, key: QueueKey, job: Job) -> None:
        """Insert ``job`` by its outlook, which does not depend on the time while it waits."""
        outlook = self.outlooks.of(job, 0.0)
        soonest = (outlook.left_s / weight_of(job, outlook), job.sequence, job)
        due = (due_at(job, outlook, self.bound), job.sequence, job)
        alike = (job.gpus_min, where_of(job))
        place = self._places[job.id] = _Place(job.priority, alike, outlook, soonest, due, kinds_of(job))
        line = self.by_priority.setdefault(place.priority, {}).setdefault(alike, Line())
        insort(line.soonest, soonest)
        insort(line.by_due, due)
        for kind in place.kinds:
            self._of_kind.setdefault(kind, {})[job.id] = job

    def remove(self, key: QueueKey, job: Job) -> None:
        """Remove ``job``; raise KeyError if it is not in the queue."""
        place = self._places.pop(job.id)
        lines = self.by_priority[place.priority]
        line = lines[place.alike]
        del line.soonest[bisect_left(line.soonest, place.soonest)]
        del line.by_due[bisect_left(line.by_due, place.due)]
        if not line.soonest:
            del lines[place.alike]
            if not lines:
                del self.by_priority[place.priority]
        for kind in place.kinds:
            alike = self._of_kind[kind]
            del alike[job.id]
            if not alike:
                del self._of_kind[kind]

    def place(self, job: Job) -> QueueKey:
        """Return what ``job``, which is in the queue, stands there by: less comes first."""
        place = self._places[job.id]
        left_s, sequence, _ = place.soonest
        return (place.priority, left_s, sequence)

    def outlook(self, job: Job) -> Outlook | None:
        """Return the outlook by which ``job`` has its place; None if it is not in the queue."""
        place = self._places.get(job.id)
        return None if place is None else place.outlook

    def due(self, job: Job) -> float:
        """Return the Unix time at which ``job``, which is in the queue, is due."""
        return self._places[job.id].due[0]

    def sort_anew(self, kinds: Iterable[Kind]) -> None:
        """Give the jobs of ``kinds`` the places that their outlooks now give them."""
        for job in {id: job for kind in kinds for id, job in self._of_kind.get(kind, {}).items()}.values():
            key = self.order(job)
            self.remove(key, job)
            self.add(key, job)


def due_at(job: Job, outlook: Outlook, bound: float) -> float:
    """Return the Unix time at which ``job`` is due; the time in which its user held it does not count."""
    return job.submitted + job.times.held_s + bound * outlook.length_s


def _identity(job: Job) -> QueueKey:
    """Return what places ``job``, apart from what is known of other jobs."""
    times = job.times
    return (job.priority, job.sequence, job.weight, times.work_s, times.held_s, job.gpus_min, job.gpus_max)
