"""Facts about what jobs were measured to use, and how fast they get on (see `measuring.gpu_memory` and `.rates`)."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import GpuId, JobId


@frozen
class MemoryOverran(Event):
    """The attempt uses ``used_bytes`` of a GPU of which it was given ``allowed_bytes``, by its node's measure."""

    job: JobId
    attempt: int
    gpu: GpuId
    used_bytes: int
    allowed_bytes: int


@frozen
class RateMeasured(Event):
    """The attempt makes so many steps per second on ``share`` parts of GPUs: the median of ``samples`` windows.

    ``alone`` says that nobody else was on its GPUs then; ``model`` is what kind of GPUs they are.
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
    """The job is to leave the ``others`` with whom it shares a GPU: together, they get on worse than one by one.

    ``speeds`` are those of the job and of the others, in this order, relative to what they are alone there.
    """

    job: JobId
    attempt: int
    gpu: GpuId
    others: tuple[JobId, ...]
    speeds: tuple[float, ...]


@frozen
class GpuMemoryChanged(Event):
    """The job needs ``mem_bytes`` of each GPU from now on, and as many GPUs as said, in parts; ``reason`` says why."""

    job: JobId
    mem_bytes: int
    gpus_min: int
    gpus_max: int
    reason: str
