"""Reserves GPUs for one user and a time, and lists reservations (``ebb reserve-gpus``, ``ebb reservations``)."""

import math
import time
from collections.abc import Iterable
from typing import Any, Final

from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.events import Event
from ebbtide_core.events.bookings import BookingCancelled, BookingMade
from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import GpuId, JobId, NodeId
from ebbtide_core.nodes.booking_placement import BookingRequest, ImpossibleError, choose
from ebbtide_protos.v1 import booking_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.request_checks import check_words
from ebbtide_master.api.views import jobs_by_gpu
from ebbtide_master.identity.caller import Role, caller
from ebbtide_master.loop import Parts, RefusedError

MAX_BOOKINGS: Final = 1000
"""Bookings that are not over."""
MAX_AHEAD_S: Final = 366 * 24 * 3600.0
MIN_LENGTH_S: Final = 60.0
MAX_LENGTH_S: Final = 31 * 24 * 3600.0
LATE_S: Final = 60.0
"""Seconds by which a start may lie in the past, so that a request for a booking from now on is not refused."""
MAX_TEXT: Final = 128


class ReservationService:
    """Makes and cancels bookings, which clients know as reservations."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop
        self._clock = master.clock
        self._bounds = master.bounds

    async def ReserveGpus(self, request: booking_pb2.ReserveGpusRequest, context: Any) -> booking_pb2.Reservation:
        """Reserve GPUs for a user, and choose now which ones."""
        now = self._clock.now()
        _check(request, now)
        who = caller() if caller().role < Role.OPERATOR else None
        if who is not None and request.end > now + self._bounds.reserve_ahead_s:
            raise SpecError("--for", f"ends more than {self._bounds.reserve_ahead_s / 86_400:g} days from now")
        made: list[BookingMade | Refusal] = []

        def facts(cluster: Cluster) -> Iterable[Event]:
            refusal = self._too_much(cluster, request, now) if who is not None else None
            found = refusal or _book(cluster, request, now)
            made.append(found)
            return [found] if isinstance(found, BookingMade) else []

        def answer(cluster: Cluster) -> booking_pb2.Reservation:
            [found] = made
            if isinstance(found, Refusal):
                raise RefusedError(found)
            return _message(cluster.state.bookings.by_id[found.booking], cluster, self._clock.now(), {})

        return await self._loop.tell(facts, answer)

    def _too_much(self, cluster: Cluster, request: booking_pb2.ReserveGpusRequest, now: float) -> Refusal | None:
        """Return why the request is over the user's limit of reserved GPU hours, or None if it is not."""
        theirs = [one for one in cluster.state.bookings.by_id.values() if request.by in (one.by, one.user)]
        has = sum(len(one.gpus) * max(0.0, one.until - max(one.since, now)) for one in theirs) / 3600.0
        wants, most = request.gpus * (request.end - max(request.start, now)) / 3600.0, self._bounds.reserved_gpu_hours
        if has + wants <= most:
            return None
        why = f"--for: {request.by} has {has:.4g} GPU hours reserved: {wants:.4g} more are over the limit of {most:g}"
        return Refusal(RefusalKind.LIMIT, why)

    async def ListReservations(
        self, request: booking_pb2.ListReservationsRequest, context: Any
    ) -> booking_pb2.ListReservationsReply:
        """List the reservations that are not over, in order of their start."""

        def answer(cluster: Cluster) -> Parts[booking_pb2.ListReservationsReply]:
            now, on_gpus = self._clock.now(), dict[NodeId, dict[GpuId, list[JobId]]]()
            reply = booking_pb2.ListReservationsReply(now=now)
            for booking in sorted(cluster.state.bookings.by_id.values(), key=lambda booking: booking.since):
                if booking.until > now:
                    reply.reservations.append(_message(booking, cluster, now, on_gpus))
                    yield
            return reply

        return await self._loop.ask_in_parts(answer)

    async def CancelReservation(
        self, request: booking_pb2.CancelReservationRequest, context: Any
    ) -> booking_pb2.Reservation:
        """Cancel a reservation, and return it as it was."""
        check_words("user", request.by, MAX_TEXT)
        was: list[booking_pb2.Reservation] = []

        def facts(cluster: Cluster) -> Iterable[Event]:
            now, booking = self._clock.now(), cluster.state.bookings.by_id.get(request.reservation_id)
            if booking is None or booking.until <= now:
                return []
            was.append(_message(booking, cluster, now, {}))
            return [BookingCancelled(booking.booking, request.by)]

        def answer(cluster: Cluster) -> booking_pb2.Reservation:
            if not was:
                raise RefusedError(unknown_reservation(request.reservation_id))
            return was[0]

        return await self._loop.tell(facts, answer)


def unknown_reservation(id: str) -> Refusal:
    """Return that there is no reservation with that id, or none any more."""
    return Refusal(RefusalKind.UNKNOWN, f"reservation {id[:40]} does not exist, or is over")


def _check(request: booking_pb2.ReserveGpusRequest, now: float) -> None:
    """Raise `SpecError` for a request that could not be met at any time."""
    for option, text in (("--user", request.user), ("user", request.by), ("--note", request.note)):
        check_words(option, text, MAX_TEXT)
    if not request.user:
        raise SpecError("--user", "is empty: GPUs are reserved for a user")
    for option, text in (("--node", request.node), ("--gpu-type", request.gpu_type)):
        check_words(option, text, MAX_TEXT)
    if not 1 <= request.gpus <= limits.MAX_GPUS:
        raise SpecError("--gpus", f"{request.gpus} is not between 1 and {limits.MAX_GPUS}")
    if not math.isfinite(request.start) or not now - LATE_S <= request.start <= now + MAX_AHEAD_S:
        raise SpecError("--start", f"is over, or more than {MAX_AHEAD_S / 86_400:.0f} days ahead")
    if not math.isfinite(request.end) or not MIN_LENGTH_S <= request.end - request.start <= MAX_LENGTH_S:
        raise SpecError("--for", f"is not between {MIN_LENGTH_S:g} s and {MAX_LENGTH_S / 86_400:.0f} days")


def _book(cluster: Cluster, request: booking_pb2.ReserveGpusRequest, now: float) -> BookingMade | Refusal:
    """Return the requested booking with the GPUs that it gets, or why it gets none."""
    bookings = cluster.state.bookings
    if len(bookings.by_id) >= MAX_BOOKINGS:
        return Refusal(RefusalKind.LIMIT, f"the limit of {MAX_BOOKINGS} reservations is reached")
    since, until = max(request.start, now), request.end
    wanted = BookingRequest(
        user=request.user,
        count=request.gpus,
        since=since,
        until=until,
        on_node=request.node,
        gpu_type=request.gpu_type,
    )
    try:
        gpus = choose(cluster.state, wanted, now)
    except ImpossibleError as error:
        return Refusal(RefusalKind.CONFLICT if error.clash else RefusalKind.INVALID, str(error))
    return BookingMade(
        booking=str(bookings.made + 1),
        user=request.user,
        since=since,
        until=until,
        gpus=gpus,
        window=_window(since, until),
        by=request.by,
        note=request.note,
        on_node=request.node,
        gpu_type=request.gpu_type,
    )


def _window(since: float, until: float) -> str:
    """Return the time from ``since`` to ``until`` in words and in local time: ``2026-11-23 09:00 to 13:00``."""
    first, last = time.localtime(since), time.localtime(until)
    same_day = first[:3] == last[:3]
    end = time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", last)
    return f"{time.strftime('%Y-%m-%d %H:%M', first)} to {end}"


def _message(
    booking: BookingMade, cluster: Cluster, now: float, on_gpus: dict[NodeId, dict[GpuId, list[JobId]]]
) -> booking_pb2.Reservation:
    """Return a reservation with the jobs on its GPUs; ``on_gpus`` caches the jobs of the nodes that were looked at."""
    gpus = []
    for booked in booking.gpus:
        message = booking_pb2.ReservedGpu(node=booked.node, uuid=booked.gpu)
        node = cluster.state.nodes.get(booked.node)
        if node is not None and booked.gpu in node.gpus:
            facts = node.gpus[booked.gpu]
            message.index, message.model = facts.index, facts.model
            if node.id not in on_gpus:
                on_gpus[node.id] = jobs_by_gpu(cluster.state, node)
            message.job_ids.extend(on_gpus[node.id].get(booked.gpu, ()))
        gpus.append(message)
    return booking_pb2.Reservation(
        reservation_id=booking.booking,
        user=booking.user,
        by=booking.by,
        start=booking.since,
        end=booking.until,
        gpus=gpus,
        note=booking.note,
        state="now" if booking.since <= now else "coming",
    )
