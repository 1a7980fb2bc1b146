"""Indexes the jobs on GPUs that others have booked by when each must be asked to leave, as events come in.

There may be a thousand bookings, and who has to leave is asked after every event. So only the jobs that changed are
looked at; all jobs on booked GPUs are looked at anew when bookings changed.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

from ebbtide_core.events.bookings import BookingMade
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_core.resources.bookings import Bookings, lead_s


class InTheWay(NamedTuple):
    """A job that must be asked at Unix time ``time`` to leave ``node``, as ``booking`` begins there."""

    time: float
    node: NodeId
    id: JobId
    job: Job
    booking: BookingMade


class JobsInTheWay:
    """The running jobs that can be preempted and have GPUs that other users have booked; one entry for each node.

    ``changed`` are the jobs that changed since `take_in` last looked at them.
    """

    def __init__(self) -> None:
        self.changed: dict[JobId, Job] = {}
        self._known: dict[JobId, list[InTheWay]] = {}
        self._order: list[InTheWay] = []
        self._of: object = None
        """The index of bookings from which the entries were made."""

    def take_in(self, bookings: Bookings, on_booked_nodes: Iterable[Job]) -> None:
        """Look at the changed jobs, or if bookings changed, at all jobs that are ``on_booked_nodes``."""
        if self._of is bookings.index:
            for job in self.changed.values():
                self._put(job, bookings)
        else:
            self._of, self._known, self._order = bookings.index, {}, []
            for job in on_booked_nodes:
                self._put(job, bookings)
        self.changed.clear()

    def due(self, now: float) -> list[InTheWay]:
        """Return the jobs to be asked by Unix time ``now``, ordered by node and id."""
        return sorted(self._order[: bisect_right(self._order, now, key=_time)], key=itemgetter(1, 2))

    def next_time(self, now: float) -> float | None:
        """Return the first Unix time after ``now`` at which a job must be asked to leave; None if there is none."""
        at = bisect_right(self._order, now, key=_time)
        return self._order[at].time if at < len(self._order) else None

    def _put(self, job: Job, bookings: Bookings) -> None:
        for entry in self._known.pop(job.id, ()):
            del self._order[bisect_left(self._order, entry[:3], key=itemgetter(0, 1, 2))]
        if entries := list(_entries(job, bookings)):
            self._known[job.id] = entries
            for entry in entries:
                insort(self._order, entry, key=itemgetter(0, 1, 2))


def _entries(job: Job, bookings: Bookings) -> Iterator[InTheWay]:
    holding = job.holding
    if holding is None or not job.running or not job.preemptible:
        return
    for piece in holding.allocation.nodes:
        found = [bookings.next_of_others(job.user, piece.node, slice.gpu) for slice in piece.gpus]
        first = min((one for one in found if one is not None), key=lambda one: one.since, default=None)
        if first is not None:
            yield InTheWay(first.since - lead_s(job), piece.node, job.id, job, first)


def _time(entry: InTheWay) -> float:
    return entry.time
