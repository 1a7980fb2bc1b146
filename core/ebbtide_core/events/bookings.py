"""Facts about bookings: GPUs that are kept for one user from one time to another (see `resources.bookings`)."""

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
    """From Unix time ``since`` until ``until``, ``gpus`` are for jobs of ``user`` only.

    ``by`` is who made it, ``window`` are its times in words. Its ``gpu_type`` and ``on_node`` are what was asked for.
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
    """The booking has other GPUs from now on; ``reason`` says why."""

    booking: str
    gpus: tuple[BookedGpu, ...]
    reason: str


@frozen
class BookingCancelled(Event):
    """``by`` does not want the booking any more."""

    booking: str
    by: str = ""
