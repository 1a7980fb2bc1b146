"""Defines the events about bookings: GPUs that are kept for one user for a time (see `resources.bookings`)."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import GpuId, NodeId


@frozen
class BookedGpu:
    """One GPU of a booking."""

    node: NodeId
    gpu: GpuId


@frozen(kw_only=True)
class BookingMade(Event):
    """From Unix time ``since`` until ``until``, only jobs of ``user`` may use ``gpus``.

    ``by`` is the user who made the booking, and ``window`` its times in words. ``gpu_type`` and ``on_node`` are what
    that user asked for.
    """

    booking: str
    user: str
    since: float
    until: float
    gpus: tuple[BookedGpu, ...]
    window: str
    by: str = ""
    note: str = ""
    on_node: str = ""
    gpu_type: str = ""


@frozen
class BookingMoved(Event):
    """The booking has these ``gpus`` from now on; ``reason`` says why."""

    booking: str
    gpus: tuple[BookedGpu, ...]
    reason: str


@frozen
class BookingCancelled(Event):
    """The user ``by`` cancelled the booking."""

    booking: str
    by: str = ""
