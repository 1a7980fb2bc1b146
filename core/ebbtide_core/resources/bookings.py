"""Bookings: GPUs that only one user's jobs get, from one time to another. Users know them as reservations.

(The policy `reservation` is about something else: how much running time a job asks for.)

Before a booking begins, others may have its GPUs as long as they can be out by then. Who can be suspended may stay
until its grace period, and the time that it takes to free a GPU, are all that is left; who cannot has to have a time
limit that ends before. As long as there is no booking, nothing here is asked.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from ebbtide_core.events.bookings import BookedGpu, BookingMade
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import Allocation, GpuId, NodeId
from ebbtide_core.resources.remembered import Remembered

FREEING_S: Final = 10.0
"""What it may take from the end of an attempt's last process until its GPU is free; after that it is set aside."""

MOST_NAMED: Final = 3
"""Bookings that one reason names: of a thousand, nobody reads the others."""

Barred = Mapping[NodeId, frozenset[GpuId]]
"""GPUs that a job may not have, or that it may, by node."""
_Next = tuple[BookingMade | None, BookingMade | None]
"""The booking that comes first on a GPU, and the first there that is of another user than that one."""
_NONE: Final[_Next] = (None, None)


def lead_s(job: Job) -> float:
    """How long before a booking ``job`` is asked to leave its GPUs, in seconds."""
    return job.spec.grace_s + FREEING_S


def stay_s(job: Job, now: float) -> float:
    """How long ``job``, if it started now, might stay, in seconds. It may not have what is booked from before that.

    Nobody is started only to be asked to leave: it shall have as long to compute as it may take to leave.
    """
    if job.preemptible:
        return 2 * lead_s(job)
    limit = job.spec.time_limit_s
    return math.inf if limit is None else max(0.0, limit - job.running_s(now)) + lead_s(job)


class Bookings:
    """Those that are not over, by id; ``now`` is when the cluster last looked at them, in Unix seconds.

    There may be a thousand, and every job that waits is asked about after every event: what is asked often is looked
    up in an index, which is made anew once there are others.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, BookingMade] = {}
        self.made = 0
        self.now = 0.0
        self.tried = set[str]()
        """Those with lost GPUs that were moved, or could not be, since all of them had their turn."""
        self.more_to_move = self.more_to_line_up = False
        """Whether some is left of what follows from them."""
        self._index: _Index | None = None

    def __bool__(self) -> bool:
        return bool(self.by_id)

    def add(self, booking: BookingMade) -> None:
        """Take in a new one."""
        self.made += 1
        self.by_id[booking.booking] = booking
        self._index = None

    def move(self, id: str, gpus: tuple[BookedGpu, ...]) -> None:
        """Note that the booking of that id, if there is one, has other GPUs."""
        if (booking := self.by_id.get(id)) is not None:
            self.by_id[id] = replace(booking, gpus=gpus)
            self._index = None

    def cancel(self, id: str) -> None:
        """Forget the booking of that id."""
        if self.by_id.pop(id, None) is not None:
            self._index = None

    def look(self, now: float) -> None:
        """Forget what is over."""
        self.now = now
        for id in [id for id, booking in self.by_id.items() if booking.until <= now]:
            self.cancel(id)

    @property
    def index(self) -> "_Index":
        """What is to be looked up of them."""
        if self._index is None:
            self._index = _Index(list(self.by_id.values()))
        return self._index

    def barred(self, job: Job) -> Barred:
        """The GPUs that ``job`` may not start on now."""
        return self.index.barred(job.user, self._leaves_at(job))

    def own(self, job: Job) -> Barred:
        """The GPUs that are kept for the user of ``job`` now."""
        return self.index.own(job.user, self.now)

    def next_on(self, node: NodeId, gpu: GpuId) -> BookingMade | None:
        """The booking that has that GPU now, or is the next to have it; None: none has."""
        return self.index.next.get(node, {}).get(gpu, _NONE)[0]

    def next_of_others(self, user: str, node: NodeId, gpu: GpuId) -> BookingMade | None:
        """The booking of others than ``user`` that has that GPU now, or is the next to have it; None: none has."""
        first, second = self.index.next.get(node, {}).get(gpu, _NONE)
        return second if first is not None and first.user == user else first

    def owners(self) -> frozenset[str]:
        """The users for whom GPUs are kept now."""
        return frozenset([booking.user for booking in self.index.every.bookings[: self.begun]])

    @property
    def begun(self) -> int:
        """How many have begun."""
        return bisect_right(self.index.every.starts, self.now)

    def forbid(self, job: Job, allocation: Allocation) -> BookingMade | None:
        """A booking because of which ``job`` may not have ``allocation`` now; None: it may."""
        leaves_at = self._leaves_at(job)
        for piece in allocation.nodes:
            for slice in piece.gpus:
                booking = self.next_of_others(job.user, piece.node, slice.gpu)
                if booking is not None and booking.since < leaves_at:
                    return booking
        return None

    def _leaves_at(self, job: Job) -> float:
        return self.now + stay_s(job, self.now)

    def obstacle(self, job: Job, node: NodeId | None = None) -> str:
        """Which GPUs ``job`` may not have because of bookings, of ``node`` or at all, in words; empty: none."""
        return self.index.obstacle(job.user, self._leaves_at(job), node)


class _Row:
    """Bookings in order of their start, of one node or of all."""

    __slots__ = ("bookings", "starts", "starts_of")

    def __init__(self) -> None:
        self.bookings: list[BookingMade] = []
        self.starts: list[float] = []
        self.starts_of: dict[str, list[float]] = {}
        """Those of the bookings of each user."""

    def add(self, booking: BookingMade) -> None:
        """Add what starts last."""
        self.bookings.append(booking)
        self.starts.append(booking.since)
        self.starts_of.setdefault(booking.user, []).append(booking.since)

    def of_others(self, user: str, before: float) -> int:
        """How many bookings of others than ``user`` start before that time."""
        return bisect_left(self.starts, before) - bisect_left(self.starts_of.get(user, ()), before)

    def text(self, user: str, count: int, node: NodeId | None) -> str:
        """The first ``count`` bookings of others than ``user`` in words; of very many, the first."""
        others = (booking for booking in self.bookings if booking.user != user)
        texts = []
        for booking in islice(others, min(count, MOST_NAMED)):
            gpus = sum(1 for booked in booking.gpus if node in (None, booked.node))
            texts.append(f"{gpus} GPU{'s are' if gpus > 1 else ' is'} {reserved_for(booking)}")
        if count > MOST_NAMED:
            texts.append(f"{count - MOST_NAMED} more reservation{'s' if count - MOST_NAMED > 1 else ''} of others")
        return "; ".join(texts)


class _Index:
    """Bookings as they are looked up: by their start, by node, and for each GPU which come next on it."""

    def __init__(self, bookings: list[BookingMade]) -> None:
        self.every, self.on_node = _Row(), dict[NodeId, _Row]()
        self.next: dict[NodeId, dict[GpuId, _Next]] = {}
        for booking in sorted(bookings, key=lambda booking: booking.since):
            self.every.add(booking)
            for node in dict.fromkeys(booked.node for booked in booking.gpus):
                self.on_node.setdefault(node, _Row()).add(booking)
            for booked in booking.gpus:
                gpus = self.next.setdefault(booked.node, {})
                first, second = gpus.get(booked.gpu, _NONE)
                if first is None or (second is None and first.user != booking.user):
                    gpus[booked.gpu] = (booking, None) if first is None else (first, booking)
        self.ends = sorted(booking.until for booking in bookings)
        self._remembered = Remembered()

    def barred(self, user: str, before: float) -> Barred:
        """The GPUs that others than ``user`` have booked from a time before that."""
        return self._remembered.get(
            ("barred", self._whose(user), bisect_left(self.every.starts, before)),
            lambda: _some({node: self._barred_on(node, user, before) for node in self.next}),
        )

    def _barred_on(self, node: NodeId, user: str, before: float) -> frozenset[GpuId]:
        firsts = ((gpu, second if first.user == user else first) for gpu, (first, second) in self._nexts(node))
        return frozenset([gpu for gpu, booking in firsts if booking is not None and booking.since < before])

    def _nexts(self, node: NodeId) -> Iterator[tuple[GpuId, tuple[BookingMade, BookingMade | None]]]:
        return ((gpu, (first, second)) for gpu, (first, second) in self.next[node].items() if first is not None)

    def own(self, user: str, now: float) -> Barred:
        """The GPUs that ``user`` has booked, and that are theirs by then."""
        if user not in self.every.starts_of:
            return {}
        count = bisect_right(self.every.starts, now)
        return self._remembered.get(
            ("own", user, count),
            lambda: _by_node([booking for booking in self.every.bookings[:count] if booking.user == user]),
        )

    def obstacle(self, user: str, before: float, node: NodeId | None) -> str:
        """The bookings of others than ``user`` that start before that time, in words."""
        row = self.every if node is None else self.on_node.get(node)
        if row is None or not (count := row.of_others(user, before)):
            return ""
        return self._remembered.get(("text", self._whose(user), count, node), lambda: row.text(user, count, node))

    def _whose(self, user: str) -> str | None:
        """The user, if they have booked anything: all others are alike."""
        return user if user in self.every.starts_of else None


def reserved_for(booking: BookingMade) -> str:
    """A booking in words."""
    return f"reserved for {booking.user}, {booking.window} (reservation {booking.booking})"


def _some(barred: Barred) -> Barred:
    """Only the nodes on which there are any."""
    return {node: gpus for node, gpus in barred.items() if gpus}


def _by_node(bookings: list[BookingMade]) -> Barred:
    found: dict[NodeId, set[GpuId]] = {}
    for booking in bookings:
        for booked in booking.gpus:
            found.setdefault(booked.node, set()).add(booked.gpu)
    return {node: frozenset(gpus) for node, gpus in found.items()}
