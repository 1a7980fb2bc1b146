"""Calls the real driver: libcuda's cuCheckpointProcess* functions (CUDA 12.8 and later).

The functions are bound with ctypes, not through the package `cuda-bindings`, because only six of them and one struct
are used. So swapping works wherever the driver does, and the tests run the binding itself, against a C stub of the
library. The package would have to be installed beside every agent, and three of its versions lack
CUcheckpointRestoreArgs.
"""

import ctypes
from typing import Any

from ebbtide_agent.swap import host_memory
from ebbtide_agent.swap.driver import DriverError, ProcessState

_LIBRARY = "libcuda.so.1"
_MAX_TIMEOUT_MS = 2**32 - 1


class CudaUnavailable(Exception):
    """This machine has no CUDA driver, or one that cannot checkpoint; the message says which."""


class _LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs of cuda.h: 64 bytes, the timeout first."""

    _fields_ = (
        ("timeoutMs", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class CudaDriver:
    """Implements `CheckpointDriver` with libcuda. Raises CudaUnavailable."""

    def __init__(self, library: str = _LIBRARY) -> None:
        try:
            cuda = ctypes.CDLL(library)
            self._init = _bind(cuda, "cuInit", ctypes.c_uint)
            self._state = _bind(cuda, "cuCheckpointProcessGetState", ctypes.c_int, ctypes.POINTER(ctypes.c_int))
            self._lock = _bind(cuda, "cuCheckpointProcessLock", ctypes.c_int, ctypes.POINTER(_LockArgs))
            self._checkpoint = _bind(cuda, "cuCheckpointProcessCheckpoint", ctypes.c_int, ctypes.c_void_p)
            self._restore = _bind(cuda, "cuCheckpointProcessRestore", ctypes.c_int, ctypes.c_void_p)
            self._unlock = _bind(cuda, "cuCheckpointProcessUnlock", ctypes.c_int, ctypes.c_void_p)
        except (OSError, AttributeError) as error:
            raise CudaUnavailable(f"no CUDA driver that can checkpoint: {error}") from None

    def initialise(self) -> None:
        _check("start", self._init(0))

    def state(self, pid: int) -> ProcessState:
        value = ctypes.c_int(-1)
        _check("tell the process's state", self._state(pid, ctypes.byref(value)))
        try:
            return ProcessState(value.value)
        except ValueError:
            return ProcessState.FAILED  # a state of a later CUDA, amid an operation that was not begun here

    def lock(self, pid: int, timeout_s: float) -> None:
        # 0 would mean no timeout.
        timeout_ms = max(1, min(round(timeout_s * 1000), _MAX_TIMEOUT_MS))
        _check("lock the process", self._lock(pid, ctypes.byref(_LockArgs(timeoutMs=timeout_ms))))

    def checkpoint(self, pid: int) -> None:
        _check("move the process's memory to the host", self._checkpoint(pid, None))

    def restore(self, pid: int) -> None:
        # Without pairs of UUIDs the process returns to the very GPU that it had.
        _check("move the process's memory back to its GPU", self._restore(pid, None))

    def unlock(self, pid: int) -> None:
        _check("unlock the process", self._unlock(pid, None))

    def host_room_bytes(self, pid: int) -> int | None:
        return host_memory.room_bytes(pid)


def _bind(library: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = arguments, ctypes.c_int
    return function


def _check(call: str, code: int) -> None:
    if code != 0:
        raise DriverError(call, code)
