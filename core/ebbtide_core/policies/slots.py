"""Slots: who has one, who waits for one, and how many of them are sticky (see `ebbtide_core.policies.hybrid`)."""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, JobId
from ebbtide_core.snapshot import Snapshot


def priority_of(job: Job) -> int:
    """How urgent ``job`` is: the less, the more urgent."""
    return job.priority


class Slots:
    """Waiting jobs by arrival; and those with regular slots by ``urgency``, the one placed first at the front."""

    def __init__(self, urgency: Callable[[Job], int] = priority_of) -> None:
        self._urgency = urgency
        self.waiting: list[tuple[int, Job]] = []
        self.regular: dict[int, list[tuple[float, int, Job]]] = {}
        self.regular_share = 0
        self.sticky_share = 0
        self._known: dict[JobId, tuple[int, float, int, bool]] = {}
        self._stands: dict[JobId, tuple[int, Job]] = {}

    def update(self, job: Job) -> None:
        """Take ``job`` in, or out."""
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
        line = self.regular.setdefault(urgency, [])
        key = (placed, job.sequence, job)
        if sign > 0:
            insort(line, key)
        else:
            del line[bisect_left(line, key)]
            if not line:
                del self.regular[urgency]


class SlotsLeft:
    """How many slots of each kind are left in one pass, in parts. Without a limit (None), all are regular."""

    def __init__(self, snapshot: Snapshot, slots: Slots, sticky: float) -> None:
        """``sticky``: how many are sticky; below 1, the share of all GPUs, rounded up; 0 for none."""
        total = sum([len(node.slices) for node in snapshot.nodes.values()]) if sticky else 0
        count = min(total, math.ceil(sticky * total) if sticky < 1 else round(sticky))
        self._slots = slots
        self.sticky = count * WHOLE
        self.regular = (total - count) * WHOLE if sticky else None
        self.sticky_left = self.sticky - slots.sticky_share
        self.regular_left = None if self.regular is None else self.regular - slots.regular_share

    def hand_out(self, place: Callable[[Job], bool]) -> None:
        """The sticky phase (HYBRID, §3.1): while sticky slots are free, who arrived first gets them by ``place``."""
        if self.sticky_left <= 0:
            return
        for _, job in self._slots.waiting:
            if self.needs_all(job):
                return
            if not 0 < job.gpus_min <= self.sticky:
                continue
            if job.gpus_min > self.sticky_left or not place(job):
                return
            self.sticky_left -= job.gpus_min
            if self.sticky_left <= 0:
                return

    def needs_all(self, job: Job) -> bool:
        """Whether ``job`` is larger than all regular slots together: once it is its turn, it gets sticky ones too."""
        return self.regular is not None and job.gpus_min > max(self.regular, self.sticky)

    def suffice(self, job: Job, victims: Sequence[Job] = ()) -> bool:
        """Whether there are regular slots for ``job`` once ``victims``, who have some, have gone."""
        if self.regular_left is None:
            return True
        left = self.regular_left + (self.sticky_left if self.needs_all(job) else 0)
        return job.gpus_min <= max(0, left + sum([slots_of(victim) for victim in victims]))

    def use(self, parts: int) -> None:
        """So many more regular slots are in use."""
        if self.regular_left is not None:
            self.regular_left -= parts


def slots_of(job: Job) -> int:
    """The slots that ``job`` takes with the room promised to it, in parts: what it has to grow on does not count."""
    return min(job.gpus_min, job.planned.share) if job.planned is not None else 0
