"""Bookings: GPUs that only one user's jobs get, from one time to another. Users know them as reservations.

(The policy `reservation` is about something else: how much running time a job asks for.)

Before a booking begins, others may have its GPUs as long as they can be out by then. Who can be suspended may stay
until its grace period, and the time that it takes to free a GPU, are all that is left; who cannot has to have a time
limit that ends before. As long as there is no booking, nothing here is asked.
"""

from collections.abc import Mapping
from typing import Final

from ebbtide_core.booking_events import BookingMade
from ebbtide_core.job import Job
from ebbtide_core.model import Allocation, GpuId, NodeId

FREEING_S: Final = 10.0
"""What it may take from the end of an attempt's last process until its GPU is free; after that it is set aside."""

Barred = Mapping[NodeId, frozenset[GpuId]]
"""GPUs that a job may not have, or that it may, by node."""


def lead_s(job: Job) -> float:
    """How long before a booking ``job`` is asked to leave its GPUs, in seconds."""
    return job.spec.grace_s + FREEING_S


class Bookings:
    """Those that are not over, by id; ``now`` is when the cluster last looked at them, in Unix seconds."""

    def __init__(self) -> None:
        self.by_id: dict[str, BookingMade] = {}
        self.made = 0
        self.now = 0.0

    def __bool__(self) -> bool:
        return bool(self.by_id)

    def add(self, booking: BookingMade) -> None:
        """Take in a new one."""
        self.made += 1
        self.by_id[booking.booking] = booking

    def look(self, now: float) -> None:
        """Forget what is over."""
        self.now = now
        for id in [id for id, booking in self.by_id.items() if booking.until <= now]:
            del self.by_id[id]

    def barred(self, job: Job) -> Barred:
        """The GPUs that ``job`` may not start on now."""
        others = [booking for booking in self.by_id.values() if booking.user != job.user]
        return _by_node([booking for booking in others if self._excludes(booking, job)])

    def own(self, job: Job) -> Barred:
        """The GPUs that are kept for the user of ``job`` now."""
        mine = [booking for booking in self.by_id.values() if booking.user == job.user]
        return _by_node([booking for booking in mine if booking.since <= self.now])

    def next_on(self, gpu: GpuId) -> BookingMade | None:
        """The booking that has ``gpu`` now, or is the next to have it; None: none has."""
        on_it = [booking for booking in self.by_id.values() if any(booked.gpu == gpu for booked in booking.gpus)]
        return min(on_it, key=lambda booking: booking.since, default=None)

    def owners(self) -> frozenset[str]:
        """The users for whom GPUs are kept now."""
        return frozenset(booking.user for booking in self.by_id.values() if booking.since <= self.now)

    def forbid(self, job: Job, allocation: Allocation) -> BookingMade | None:
        """The booking because of which ``job`` may not have ``allocation`` now; None: it may."""
        wanted = set(allocation.gpu_ids)
        for booking in self.by_id.values():
            concerned = booking.user != job.user and any(booked.gpu in wanted for booked in booking.gpus)
            if concerned and self._excludes(booking, job):
                return booking
        return None

    def _excludes(self, booking: BookingMade, job: Job) -> bool:
        """Whether ``job``, if it started now, would not be out by the time that ``booking`` begins.

        Nobody is started only to be asked to leave: it shall have as long to compute as it may take to leave.
        """
        if booking.since <= self.now:
            return True
        if job.preemptible:
            return self.now + 2 * lead_s(job) > booking.since
        limit = job.spec.time_limit_s
        if limit is None:
            return True
        return self.now + max(0.0, limit - job.running_s(self.now)) + lead_s(job) > booking.since

    def obstacle(self, job: Job, node: NodeId | None = None) -> str:
        """Which GPUs ``job`` may not have because of bookings, of ``node`` or at all, in words; empty: none."""
        texts = []
        for booking in self.by_id.values():
            count = sum(1 for booked in booking.gpus if node in (None, booked.node))
            if count and booking.user != job.user and self._excludes(booking, job):
                texts.append(f"{count} GPU{'s are' if count > 1 else ' is'} {reserved_for(booking)}")
        return "; ".join(texts)


def reserved_for(booking: BookingMade) -> str:
    """A booking in words."""
    return f"reserved for {booking.user}, {booking.window} (reservation {booking.booking})"


def _by_node(bookings: list[BookingMade]) -> Barred:
    found: dict[NodeId, set[GpuId]] = {}
    for booking in bookings:
        for booked in booking.gpus:
            found.setdefault(booked.node, set()).add(booked.gpu)
    return {node: frozenset(gpus) for node, gpus in found.items()}
