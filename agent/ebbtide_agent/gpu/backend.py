"""Define what the agent asks of GPUs, for every kind of backend.

"Not available" is a value (None), never an exception: one GPU that fell off the bus must not hide the others.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol

Kind = Literal["nvml", "fake", "none"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this node, or a MIG slice of one, as found when the backend was opened."""

    uuid: str
    index: int
    model: str
    mem_bytes: int  # 0: could not be read
    pci_bus_id: str = ""
    numa_node: int | None = None
    compute_capability: str = ""  # such as "9.0"
    parent: str = ""  # UUID of the GPU that this MIG slice is cut from; empty: this is a whole GPU
    minor: int | None = None  # number of its device, as in /dev/nvidia0; None: not available


class DeviceLinkKind(IntEnum):
    """How two GPUs reach each other, the fastest first."""

    NVLINK = 1
    SWITCH = 2  # through PCIe switches only
    HOST_BRIDGE = 3
    NUMA_NODE = 4  # over several bridges of one NUMA node
    SYSTEM = 5  # between NUMA nodes


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """How two GPUs of one node reach each other."""

    one: str  # UUID
    other: str
    kind: DeviceLinkKind


@dataclass(frozen=True, slots=True)
class Driver:
    """The versions of the driver; empty: not available."""

    version: str = ""
    cuda: str = ""  # the newest CUDA that the driver runs, such as "13.0"


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """How an administrator has set one GPU; None: not available."""

    persistence: bool | None = None
    compute_mode: str | None = None  # "default", "exclusive process", "prohibited"
    mig: bool | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory on a GPU."""

    pid: int
    mem_bytes: int | None  # None: not available
    mps: bool = False  # whether it computes through an MPS server


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What one GPU reported at one moment. The GPU is healthy if `unhealthy_reason` is empty."""

    uuid: str
    mem_used_bytes: int | None = None
    mem_total_bytes: int | None = None
    utilisation: float | None = None  # 0 to 1
    processes: tuple[GpuProcess, ...] | None = None  # None: not available, which is not the same as none
    mem_reserved_bytes: int | None = None  # by the driver for itself; not part of `mem_used_bytes`
    temperature_c: int | None = None
    power_w: float | None = None
    xids: tuple[int, ...] = ()  # errors that the driver reported since the last reading
    unhealthy_reason: str = ""
    gone: bool = False  # the GPU is lost for certain, and with it everything that ran on it

    @property
    def healthy(self) -> bool:
        """Whether the GPU answers and reports no fault."""
        return not self.unhealthy_reason


class GpuBackend(Protocol):
    """The GPUs of one node. Calls may block; they never raise for what a GPU or its driver does."""

    @property
    def kind(self) -> Kind:
        """The kind of this backend."""

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs found so far, in the driver's order."""

    def links(self) -> tuple[DeviceLink, ...]:
        """Return how these GPUs reach each other, without the pairs that the driver does not report."""

    def driver(self) -> Driver:
        """Return the versions of the driver."""

    def settings(self, uuid: str) -> GpuSettings:
        """Return how one of these GPUs is set now."""

    def read(self, uuid: str) -> GpuReading:
        """Return the state of one of these GPUs now."""


class NoGpus:
    """The backend of a node without GPUs."""

    kind: Kind = "none"

    def close(self) -> None:
        """Do nothing, as there is nothing to close."""

    def gpus(self) -> tuple[Gpu, ...]:
        return ()

    def links(self) -> tuple[DeviceLink, ...]:
        return ()

    def driver(self) -> Driver:
        return Driver()

    def settings(self, uuid: str) -> GpuSettings:
        return GpuSettings()

    def read(self, uuid: str) -> GpuReading:
        return GpuReading(uuid, unhealthy_reason="no such GPU on this node")
