"""Slots: the jobs that have or await one, and how many are sticky (see `ebbtide_core.policies.hybrid`)."""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, JobId
from ebbtide_core.resources.eligibility import holds_up
from ebbtide_core.snapshot import Snapshot


def priority_of(job: Job) -> int:
    """Return the urgency of ``job``; a lower number is more urgent."""
    return job.priority


class Slots:
    """Waiting jobs by arrival, and jobs with regular slots by ``urgency``, then in the order of their placement."""

    def __init__(self, urgency: Callable[[Job], int] = priority_of) -> None:
        self._urgency = urgency
        self.waiting: list[tuple[int, Job]] = []
        self.regular: dict[int, list[tuple[float, int, Job]]] = {}
        self.regular_share = 0
        self.sticky_share = 0
        self._known: dict[JobId, tuple[int, float, int, bool]] = {}
        self._stands: dict[JobId, tuple[int, Job]] = {}

    def update(self, job: Job) -> None:
        """Add, update or remove ``job`` according to its state."""
        if (job.queued is not None) is not (job.id in self._stands):
            self._queue(job)
        entry = None
        if job.planned is not None:
            placed = job.attempts[-1] if job.running else None
            sticky = placed is not None and placed.sticky
            entry = (self._urgency(job), placed.placed if placed else math.inf, slots_of(job), sticky)
        known = self._known.get(job.id)
        if entry == known:
            return
        if known is not None:
            self._count(job, known, -1)
        if entry is not None:
            self._known[job.id] = entry
            self._count(job, entry, 1)
        else:
            del self._known[job.id]

    def is_sticky(self, id: JobId) -> bool:
        """Return whether the job with that id, which has room, has it on sticky slots."""
        return self._known[id][3]

    def _queue(self, job: Job) -> None:
        if job.queued is not None:
            entry = self._stands[job.id] = (job.sequence, job)
            insort(self.waiting, entry)
        else:
            del self.waiting[bisect_left(self.waiting, self._stands.pop(job.id))]

    def _count(self, job: Job, entry: tuple[int, float, int, bool], sign: int) -> None:
        urgency, placed, slots, sticky = entry
        if sticky:
            self.sticky_share += sign * slots
            return
        self.regular_share += sign * slots
        keys = self.regular.setdefault(urgency, [])
        key = (placed, job.sequence, job)
        if sign > 0:
            insort(keys, key)
        else:
            del keys[bisect_left(keys, key)]
            if not keys:
                del self.regular[urgency]


class SlotsLeft:
    """How many slots of each kind are left in one pass, in parts; ``regular`` is None if no slots are sticky.

    What jobs hold on nodes that cannot be used, and of GPUs that are not on offer, is no slot.
    """

    def __init__(self, snapshot: Snapshot, slots: Slots, sticky: float) -> None:
        """Count the slots; ``sticky`` is the number of sticky ones or, below 1, their share of all GPUs, rounded up."""
        total = sum([len(node.slices) for node in snapshot.nodes.values()]) if sticky else 0
        count = min(total, math.ceil(sticky * total) if sticky < 1 else round(sticky))
        self._slots = slots
        self._books = snapshot.books
        self.sticky = count * WHOLE
        self.regular = (total - count) * WHOLE if sticky else None
        self._away = _slots_away(snapshot) if sticky else {}
        self.sticky_left = self.sticky - slots.sticky_share
        self.regular_left = None if self.regular is None else self.regular - slots.regular_share
        for id, parts in self._away.items():
            if slots.is_sticky(id):
                self.sticky_left += parts
            else:
                self.use(-parts)

    def hand_out(self, place: Callable[[Job], bool]) -> None:
        """Give free sticky slots by ``place`` to the jobs that arrived first (the sticky phase of HYBRID, §3.1).

        Whoever does not get a slot keeps those behind it from one, unless no node in service could run it.
        """
        if self.sticky_left <= 0:
            return
        for _, job in self._slots.waiting:
            may_have_one = 0 < job.gpus_min <= self.sticky
            if not (may_have_one or self.needs_all(job)):
                continue
            if may_have_one and job.gpus_min <= self.sticky_left and place(job):
                self.sticky_left -= job.gpus_min
                if self.sticky_left <= 0:
                    return
            elif holds_up(job, self._books):
                return

    def needs_all(self, job: Job) -> bool:
        """Return whether ``job`` is larger than all regular slots together, so that it also gets sticky ones."""
        return self.regular is not None and job.gpus_min > max(self.regular, self.sticky)

    def suffice(self, job: Job, victims: Sequence[Job] = ()) -> bool:
        """Return whether there are enough regular slots for ``job`` once ``victims`` have given theirs back."""
        if self.regular_left is None:
            return True
        left = self.regular_left + (self.sticky_left if self.needs_all(job) else 0)
        return job.gpus_min <= max(0, left + self.of(victims))

    def of(self, jobs: Sequence[Job]) -> int:
        """Return the slots that ``jobs`` take, in parts."""
        return sum([slots_of(job) - self._away.get(job.id, 0) for job in jobs])

    def use(self, parts: int) -> None:
        """Count ``parts`` more of the regular slots as used."""
        if self.regular_left is not None:
            self.regular_left -= parts


def _slots_away(snapshot: Snapshot) -> dict[JobId, int]:
    """Return what jobs take of nodes that cannot be used and of GPUs that are not on offer, in parts, by job."""
    found = dict[JobId, int]()
    for node in snapshot.books.nodes.values():
        for id in node.planned if not node.sound or node.id not in snapshot.nodes else ():
            job = snapshot.job(id)
            found[id] = max(0, slots_of(job) - snapshot.share_in_service(job))
    return found


def slots_of(job: Job) -> int:
    """Return the slots that ``job`` takes with the room promised to it, in parts; an elastic surplus does not count."""
    return min(job.gpus_min, job.planned.share) if job.planned is not None else 0
