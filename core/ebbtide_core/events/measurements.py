"""Defines the events about the measured GPU memory and speed of jobs (see `measuring.gpu_memory` and `.rates`)."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import GpuId, JobId


@frozen
class MemoryOverran(Event):
    """The attempt uses ``used_bytes`` of a GPU of which it was given ``allowed_bytes``, as its node measured."""

    job: JobId
    attempt: int
    gpu: GpuId
    used_bytes: int
    allowed_bytes: int


@frozen
class RateMeasured(Event):
    """The attempt makes ``steps_per_s`` on ``share`` parts of GPUs; that is the median of ``samples`` windows.

    It was on ``nodes`` nodes, and ``alone`` on its GPUs or beside other attempts; ``model`` is the model of the GPUs.
    """

    job: JobId
    attempt: int
    share: int
    nodes: int
    alone: bool
    steps_per_s: float
    samples: int
    model: str = ""


@frozen
class InterferenceFound(Event):
    """The job must leave the GPU that it shares with ``others``: together they are slower than one after the other.

    ``speeds`` are those of the job and of the others, in this order, each relative to its speed alone on that GPU.
    """

    job: JobId
    attempt: int
    gpu: GpuId
    others: tuple[JobId, ...]
    speeds: tuple[float, ...]


@frozen
class GpuMemoryChanged(Event):
    """The job needs ``mem_bytes`` of each GPU and ``gpus_min`` to ``gpus_max`` parts of GPUs from now on.

    Arrays and quotas may leave it less than ``gpus_max``.
    """

    job: JobId
    mem_bytes: int
    gpus_min: int
    gpus_max: int
    reason: str
