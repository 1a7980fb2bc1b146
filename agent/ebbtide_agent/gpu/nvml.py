"""GPUs through NVML's functions: those of the `pynvml` module, or of anything that offers the same ones."""

import importlib
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ebbtide_agent.gpu.backend import Gpu, GpuProcess, Kind, Reading

log = logging.getLogger(__name__)

T = TypeVar("T")

# Codes that say "this question has no answer here", and nothing about the GPU's health: not supported, no
# permission, not found, function not found, no data, argument version mismatch, deprecated, not ready.
_NO_ANSWER = frozenset({3, 4, 6, 13, 21, 25, 26, 27})

# Codes that say that the GPU is lost, must be reset, is not found any more.
_GONE = frozenset({15, 16, 28})


class NvmlLibrary(Protocol):
    """The part of NVML that is used, under the names and with the results of `pynvml`."""

    @property
    def NVMLError(self) -> type[Exception]: ...  # its instances carry NVML's code as `value`
    @property
    def nvmlMemory_v2(self) -> int: ...
    def nvmlInit(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...
    def nvmlDeviceGetName(self, handle: Any) -> str: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any) -> list[Any]: ...
    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: Any) -> list[Any]: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...


class NvmlUnavailable(Exception):
    """There is no NVML to ask on this machine, or it does not start; the message says why."""


class NvmlBackend:
    """`GpuBackend` over an NVML library. Raises NvmlUnavailable if the library does not start."""

    def __init__(self, library: NvmlLibrary, kind: Kind = "nvml") -> None:
        self.kind: Kind = kind
        self._nvml = library
        self._handles: dict[str, Any] = {}
        self._gpus: list[Gpu] = []
        try:
            library.nvmlInit()
            count = library.nvmlDeviceGetCount()
        except library.NVMLError as error:
            raise NvmlUnavailable(str(error)) from None
        for index in range(count):
            self._find(index)

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(self._gpus)

    def read(self, uuid: str) -> Reading:
        handle = self._handles.get(uuid)
        if handle is None:
            return Reading(uuid, unhealthy_reason="no such GPU on this node")
        try:
            return self._read(uuid, handle)
        except self._nvml.NVMLError as error:
            return Reading(uuid, unhealthy_reason=str(error), gone=getattr(error, "value", None) in _GONE)

    def _find(self, index: int) -> None:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = self._nvml.nvmlDeviceGetUUID(handle)
        except self._nvml.NVMLError as error:
            # Without its UUID a GPU has no name to be reported under.
            log.error("event=gpu-left-out index=%d reason=%r", index, str(error))
            return
        model = self._name(handle)
        self._handles[uuid] = handle
        self._gpus.append(Gpu(uuid, index, model, mem_bytes=self.read(uuid).mem_total_bytes or 0))

    def _name(self, handle: Any) -> str:
        try:
            return self._nvml.nvmlDeviceGetName(handle)
        except self._nvml.NVMLError:
            return "unknown"

    def _read(self, uuid: str, handle: Any) -> Reading:
        memory = self._answer(lambda: self._memory(handle))
        rates = self._answer(lambda: self._nvml.nvmlDeviceGetUtilizationRates(handle))
        total = None if memory is None else int(memory.total)
        return Reading(
            uuid,
            mem_used_bytes=None if memory is None else int(memory.used),
            mem_total_bytes=total,
            utilisation=None if rates is None else rates.gpu / 100,
            processes=self._processes(handle, total),
        )

    def _memory(self, handle: Any) -> Any:
        # The second version leaves out of `used` what the driver reserves for itself; old drivers have only the first.
        newer = self._answer(lambda: self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2))
        return newer if newer is not None else self._nvml.nvmlDeviceGetMemoryInfo(handle)

    def _processes(self, handle: Any, total: int | None) -> tuple[GpuProcess, ...] | None:
        direct = self._answer(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
        if direct is None:
            return None
        through_mps = self._answer(lambda: self._nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle)) or []
        found: dict[int, GpuProcess] = {}
        for entry in (*direct, *through_mps):
            found.setdefault(entry.pid, GpuProcess(entry.pid, _plausible(entry.usedGpuMemory, total)))
        return tuple(found.values())

    def _answer(self, ask: Callable[[], T]) -> T | None:
        """The answer, or None if there is none here. Raises NVMLError if something is wrong with the GPU."""
        try:
            return ask()
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) in _NO_ANSWER:
                return None
            raise


def open_nvml() -> NvmlBackend:
    """The real GPUs of this machine. Raises NvmlUnavailable if it has no NVML library, no driver or no working one."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError as error:
        raise NvmlUnavailable(str(error)) from None
    return NvmlBackend(library)


def has_real_gpus() -> bool:
    """Whether this machine has at least one GPU that NVML can name."""
    try:
        return bool(open_nvml().gpus())
    except NvmlUnavailable:
        return False


def _plausible(used: int | None, total: int | None) -> int | None:
    # Driver and binding once disagreed on the layout of this struct; a process cannot hold more than there is.
    return None if used is None or (total is not None and used > total) else int(used)
