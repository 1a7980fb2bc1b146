"""Asks NVML before and after a swap, in the operation's own process, because a lost GPU can hang or crash it."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ebbtide_agent.gpu.codes import CodeMeaning, meaning
from ebbtide_agent.gpu.fake import FakeNvml
from ebbtide_agent.gpu.handles import handle_of


class GpuError(Exception):
    """NVML does not answer, or says that something is wrong with the GPU; the message says what."""


class Nvml(Protocol):
    """The part of NVML that is used, under the names and with the results of `pynvml`."""

    @property
    def NVMLError(self) -> type[Exception]: ...
    @property
    def nvmlMemory_v2(self) -> int: ...
    def nvmlInit(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any) -> list[Any]: ...
    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: Any) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class GpuLook:
    """What NVML says of one GPU at one moment."""

    free_bytes: int
    processes: dict[int, int | None]  # pid to bytes, None: not available
    through_mps: frozenset[int]


class SwapGpus:
    """The GPUs of this machine, real or fake. Every method raises GpuError."""

    def __init__(self, library: Nvml) -> None:
        self._nvml = library
        self._ask(library.nvmlInit)

    def driver_version(self) -> int:
        """Return the first number of the driver's version, such as 580."""
        text: str = self._ask(self._nvml.nvmlSystemGetDriverVersion)
        number = text.partition(".")[0]
        if not number.isdigit():
            raise GpuError(f"the driver's version {text!r} is none")
        return int(number)

    def look(self, uuid: str) -> GpuLook:
        """Return how much memory is free on the GPU, and which processes are on it."""
        handle = self._ask(handle_of, self._nvml, uuid)
        # Only the second version leaves out of `free` what the driver keeps for itself.
        memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle, version=self._nvml.nvmlMemory_v2)
        direct = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
        through_mps = self._ask(self._nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, handle)
        return GpuLook(
            int(memory.free),
            {entry.pid: entry.usedGpuMemory for entry in (*through_mps, *direct)},
            frozenset(entry.pid for entry in through_mps),
        )

    def others_of(self, pids: frozenset[int], uuid: str) -> list[str]:
        """Return the UUIDs of further GPUs that any of these processes computes on."""
        count = self._ask(self._nvml.nvmlDeviceGetCount)
        return [found for index in range(count) if (found := self._used(index, pids)) not in ("", uuid)]

    def _used(self, index: int, pids: frozenset[int]) -> str:
        """Return the GPU's UUID if any of these processes computes on it, else ""; none computes on a lost GPU."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            listed = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
            is_used = any(entry.pid in pids for entry in listed)
            return str(self._nvml.nvmlDeviceGetUUID(handle)) if is_used else ""
        except self._nvml.NVMLError as error:
            if meaning(error) is CodeMeaning.GPU_GONE:
                return ""
            raise GpuError(f"NVML: {error}") from None

    def _ask(self, call: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except self._nvml.NVMLError as error:
            raise GpuError(f"NVML: {error}") from None


def open_gpus(fake_gpu_dir: str) -> SwapGpus:
    """Return the fake GPUs of this directory, or for an empty name the real ones. Raises GpuError."""
    if fake_gpu_dir:
        return SwapGpus(FakeNvml(Path(fake_gpu_dir)))
    try:
        return SwapGpus(importlib.import_module("pynvml"))
    except ImportError as error:
        raise GpuError(str(error)) from None
