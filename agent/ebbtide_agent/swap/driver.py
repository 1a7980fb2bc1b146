"""Defines the calls of a driver that can checkpoint a process, for libcuda and for the fake."""

from enum import IntEnum
from typing import Protocol

# The codes of libcuda that mean something here.
OUT_OF_MEMORY = 2
OPERATING_SYSTEM = 304
ILLEGAL_STATE = 401
NOT_READY = 600
NOT_SUPPORTED = 801
INVALID_VALUE = 1
_NAMES = {
    INVALID_VALUE: "invalid value: it has no CUDA process of that pid",
    OUT_OF_MEMORY: "out of memory",
    3: "not initialized",
    100: "no device",
    OPERATING_SYSTEM: "an operating system call failed",
    ILLEGAL_STATE: "not in this state of the process",
    NOT_READY: "not ready in time",
    800: "operation not permitted",
    NOT_SUPPORTED: "not supported for this process",
}


class ProcessState(IntEnum):
    """How far a process is on its way to host memory or back; the values are libcuda's."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


class DriverError(Exception):
    """The driver refused a call, with libcuda's `code`."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"the driver failed to {call}: {_NAMES.get(code, 'error')} ({code})")
        self.code = code


class CheckpointDriver(Protocol):
    """A driver whose calls each act on one process by its pid. All raise DriverError, and any may never return."""

    def initialise(self) -> None:
        """Initialise the driver before `restore`, which needs it if the GPU's persistence mode is off."""

    def state(self, pid: int) -> ProcessState: ...

    def lock(self, pid: int, timeout_s: float) -> None:
        """RUNNING -> LOCKED: block further CUDA calls of the process. NOT_READY after the timeout: still RUNNING."""

    def checkpoint(self, pid: int) -> None:
        """LOCKED -> CHECKPOINTED: move the process's GPU memory to host memory, and release its GPU."""

    def restore(self, pid: int) -> None:
        """CHECKPOINTED -> LOCKED: move the memory back to the same GPU. After OUT_OF_MEMORY only SIGKILL helps."""

    def unlock(self, pid: int) -> None:
        """LOCKED -> RUNNING: let the process's CUDA calls go on."""

    def host_room_bytes(self, pid: int) -> int | None:
        """Return how many bytes of host memory the driver could take for the process; None: no limit is known."""
