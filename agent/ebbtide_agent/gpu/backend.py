"""What the agent asks of GPUs, whoever answers.

"Not available" is a value (None), never an exception: one GPU that fell off the bus must not hide the others.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["nvml", "fake", "none"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this node, as found when the backend was opened."""

    uuid: str
    index: int
    model: str
    mem_bytes: int  # 0: could not be read


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory on a GPU."""

    pid: int
    mem_bytes: int | None  # None: not available


@dataclass(frozen=True, slots=True)
class Reading:
    """What one GPU said at one moment. It is healthy if `unhealthy_reason` is empty."""

    uuid: str
    mem_used_bytes: int | None = None
    mem_total_bytes: int | None = None
    utilisation: float | None = None  # 0 to 1
    processes: tuple[GpuProcess, ...] | None = None  # None: not available, which is not the same as none
    unhealthy_reason: str = ""

    @property
    def healthy(self) -> bool:
        """Whether the GPU answers and says nothing bad of itself."""
        return not self.unhealthy_reason


class GpuBackend(Protocol):
    """The GPUs of one node. Calls may block; they never raise for what a GPU or its driver does."""

    @property
    def kind(self) -> Kind:
        """Who answers."""

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs found when the backend was opened, in the driver's order."""

    def read(self, uuid: str) -> Reading:
        """The state of one of these GPUs now."""


class NoGpus:
    """The backend of a node without GPUs."""

    kind: Kind = "none"

    def gpus(self) -> tuple[Gpu, ...]:
        return ()

    def read(self, uuid: str) -> Reading:
        return Reading(uuid, unhealthy_reason="no such GPU on this node")
