"""Keeps the bookings: GPUs that only one user's jobs get, from one time to another. Users know them as reservations.

(The policy `reservation` is about something else: how much running time a job asks for.)

Before a booking begins, jobs of other users may have its GPUs if they can leave by then. A preemptible job may stay
until only its grace period and the time to free a GPU are left. Any other job needs a time limit that ends before the
booking begins. While there are no bookings, placing does not look here.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final, TypeVar

from ebbtide_core.events.bookings import BookedGpu, BookingMade
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import Allocation, GpuId, NodeId
from ebbtide_core.resources.cache import Cache

T = TypeVar("T")

FREEING_S: Final = 10.0
"""Seconds from the end of an attempt's last process until its GPU is free; after that the GPU is quarantined."""

MOST_NAMED: Final = 3
"""Bookings that one reason names, because a user does not read a list of a thousand."""

Barred = Mapping[NodeId, frozenset[GpuId]]
"""GPUs by node: the GPUs that a job may not have, or the ones that its user has booked."""
_Next = tuple[BookingMade | None, BookingMade | None]
"""The first booking on a GPU, and the first booking there by another user than the first one's."""
_NONE: Final[_Next] = (None, None)


def lead_s(job: Job) -> float:
    """Return how many seconds before a booking begins ``job`` is asked to leave its GPUs."""
    return job.spec.grace_s + FREEING_S


def stay_s(job: Job, now: float) -> float:
    """Return for how many seconds ``job`` might stay if it started now. It may not have GPUs that are booked sooner.

    For a preemptible job this is twice the time that it may take to leave, so that it computes at least as long as it
    takes to leave. For another job it is the rest of its time limit and that time; infinite without a limit.
    """
    if job.preemptible:
        return 2 * lead_s(job)
    limit = job.spec.time_limit_s
    return math.inf if limit is None else max(0.0, limit - job.running_s(now)) + lead_s(job)


class Bookings:
    """The bookings that are not over, by id; ``now`` is the Unix time at which the cluster last looked at them.

    There may be a thousand bookings, and each waiting job is checked against them after every event. So frequent
    queries use an index, which is rebuilt when bookings have changed.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, BookingMade] = {}
        self.made = 0
        self.now = 0.0
        self.tried = set[str]()
        """Ids of bookings with lost GPUs that were tried to be moved in the present round over all such bookings."""
        self.more_to_move = self.more_to_block = False
        """Whether bookings are still to be moved, and jobs to be taken out of the queue or put back."""
        self._index: _Index | None = None

    def __bool__(self) -> bool:
        return bool(self.by_id)

    def add(self, booking: BookingMade) -> None:
        """Add a new booking."""
        self.made += 1
        self.by_id[booking.booking] = booking
        self._index = None

    def move(self, id: str, gpus: tuple[BookedGpu, ...]) -> None:
        """Give the booking with that id, if there is one, other GPUs."""
        if (booking := self.by_id.get(id)) is not None:
            self.by_id[id] = replace(booking, gpus=gpus)
            self._index = None

    def cancel(self, id: str) -> None:
        """Forget the booking with that id, if there is one."""
        if self.by_id.pop(id, None) is not None:
            self._index = None

    def look(self, now: float) -> None:
        """Note the time, and forget the bookings that are over."""
        self.now = now
        for id in [id for id, booking in self.by_id.items() if booking.until <= now]:
            self.cancel(id)

    @property
    def index(self) -> "_Index":
        """The index of all bookings, built when it is first needed."""
        if self._index is None:
            self._index = _Index(list(self.by_id.values()))
        return self._index

    def barred(self, job: Job) -> Barred:
        """Return the GPUs that ``job`` may not start on now."""
        return self.index.barred(job.user, self._leaves_at(job))

    def own(self, job: Job) -> Barred:
        """Return the GPUs that are kept for the user of ``job`` now."""
        return self.index.own(job.user, self.now)

    def next_on(self, node: NodeId, gpu: GpuId) -> BookingMade | None:
        """Return the booking that has that GPU now or next; None if there is none."""
        return self.index.next.get(node, {}).get(gpu, _NONE)[0]

    def next_of_others(self, user: str, node: NodeId, gpu: GpuId) -> BookingMade | None:
        """Return the booking of another user than ``user`` that has that GPU now or next; None if there is none."""
        first, second = self.index.next.get(node, {}).get(gpu, _NONE)
        return second if first is not None and first.user == user else first

    def owners(self) -> frozenset[str]:
        """Return the users for whom GPUs are kept now."""
        return frozenset([booking.user for booking in self.begun])

    @property
    def begun(self) -> list[BookingMade]:
        """The bookings that have begun."""
        return self.index.every.bookings[: bisect_right(self.index.every.starts, self.now)]

    def forbid(self, job: Job, allocation: Allocation) -> BookingMade | None:
        """Return a booking because of which ``job`` may not have ``allocation`` now; None if it may."""
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
        """Return which GPUs bookings keep from ``job``, on ``node`` or (None) anywhere, in words; empty if none."""
        return self.index.obstacle(job.user, self._leaves_at(job), node)


class _Row:
    """The bookings of one node or of all nodes, in order of their start."""

    __slots__ = ("bookings", "starts", "starts_of")

    def __init__(self) -> None:
        self.bookings: list[BookingMade] = []
        self.starts: list[float] = []
        self.starts_of: dict[str, list[float]] = {}
        """The starts of each user's bookings."""

    def add(self, booking: BookingMade) -> None:
        """Add a booking that starts no earlier than the ones before."""
        self.bookings.append(booking)
        self.starts.append(booking.since)
        self.starts_of.setdefault(booking.user, []).append(booking.since)

    def of_others(self, user: str, before: float) -> int:
        """Return how many bookings of other users than ``user`` start before that time."""
        return bisect_left(self.starts, before) - bisect_left(self.starts_of.get(user, ()), before)

    def text(self, user: str, count: int, node: NodeId | None) -> str:
        """Return the first ``count`` bookings of other users in words; beyond `MOST_NAMED` only their number."""
        others = (booking for booking in self.bookings if booking.user != user)
        texts = []
        for booking in islice(others, min(count, MOST_NAMED)):
            gpus = sum(1 for booked in booking.gpus if node in (None, booked.node))
            texts.append(f"{gpus} GPU{'s are' if gpus > 1 else ' is'} {reserved_for(booking)}")
        if count > MOST_NAMED:
            texts.append(f"{count - MOST_NAMED} more reservation{'s' if count - MOST_NAMED > 1 else ''} of others")
        return "; ".join(texts)


class _Index:
    """An index of the bookings: by start, by node, and which come next on each GPU."""

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
        self._cache = Cache()

    def barred(self, user: str, before: float) -> Barred:
        """Return the GPUs that other users than ``user`` have booked from a time before ``before``."""
        return self._cache.get(
            ("barred", self._whose(user), bisect_left(self.every.starts, before)),
            lambda: _some({node: self._barred_on(node, user, before) for node in self.next}),
        )

    def _barred_on(self, node: NodeId, user: str, before: float) -> frozenset[GpuId]:
        firsts = ((gpu, second if first.user == user else first) for gpu, (first, second) in self._nexts(node))
        return frozenset([gpu for gpu, booking in firsts if booking is not None and booking.since < before])

    def _nexts(self, node: NodeId) -> Iterator[tuple[GpuId, tuple[BookingMade, BookingMade | None]]]:
        return ((gpu, (first, second)) for gpu, (first, second) in self.next[node].items() if first is not None)

    def own(self, user: str, now: float) -> Barred:
        """Return the GPUs of bookings of ``user`` that have begun by Unix time ``now``."""
        if user not in self.every.starts_of:
            return {}
        count = bisect_right(self.every.starts, now)
        return self._cache.get(
            ("own", user, count),
            lambda: _by_node([booking for booking in self.every.bookings[:count] if booking.user == user]),
        )

    def obstacle(self, user: str, before: float, node: NodeId | None) -> str:
        """Return the bookings of other users than ``user`` that start before that time, in words."""
        row = self.every if node is None else self.on_node.get(node)
        if row is None or not (count := row.of_others(user, before)):
            return ""
        return self._cache.get(("text", self._whose(user), count, node), lambda: row.text(user, count, node))

    def until_nodes_change(self, changes: Hashable, compute: Callable[[], T]) -> T:
        """Return what ``compute`` does, which depends on bookings and nodes only; ``changes`` changes with nodes."""
        return self._cache.get(("nodes", changes), compute)

    def _whose(self, user: str) -> str | None:
        """Return ``user`` if they have a booking, else None, because the answers are alike for all other users."""
        return user if user in self.every.starts_of else None


def reserved_for(booking: BookingMade) -> str:
    """Return a booking in words."""
    return f"reserved for {booking.user}, {booking.window} (reservation {booking.booking})"


def _some(barred: Barred) -> Barred:
    """Leave out the nodes without such GPUs."""
    return {node: gpus for node, gpus in barred.items() if gpus}


def _by_node(bookings: list[BookingMade]) -> Barred:
    found: dict[NodeId, set[GpuId]] = {}
    for booking in bookings:
        for booked in booking.gpus:
            found.setdefault(booked.node, set()).add(booked.gpu)
    return {node: frozenset(gpus) for node, gpus in found.items()}
