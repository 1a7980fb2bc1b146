"""NVML's functions over a directory of files, so that fake GPUs run through the very code that reads real ones.

    gpus.json               {"gpus": [{"uuid", "model", "mem_bytes", "idle_bytes"}, ...]}
    processes/<pid>.json    {"pid", "starttime", "gpus": {uuid: bytes}}: written by whoever starts the process
    faults.json             {"lost": [uuid, ...], "release_after_s": {uuid: seconds}}: read anew at every call

A process that has ended holds nothing, whether its file is still there or not; `release_after_s` makes its memory stay
for so long after it was first missed, with no process shown for it, as a driver does that is slow to clean up.
"""

import json
import time
import uuid as uuids
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebbtide_agent import procfs
from ebbtide_agent.gpu.profiles import MIB, FakeGpu
from ebbtide_agent.jsonfile import read_json, write_json

# What an idle GPU shows as used.
_IDLE_BYTES = 16 * MIB
_DRIVER_VERSION = "580.0.fake"
# Like the driver, utilisation is a mean over a window; a shorter one would show only the jitter of CPU accounting.
_WINDOW_S = 0.5
# How long an ended process is remembered for the sake of a late release.
_LONGEST_RELEASE_S = 60.0


class NVMLError(Exception):
    """An error of NVML; `value` is its code."""

    value = 999
    text = "Unknown Error"

    def __str__(self) -> str:
        return self.text


class NVMLError_InvalidArgument(NVMLError):
    value = 2
    text = "Invalid Argument"


class NVMLError_NotFound(NVMLError):
    value = 6
    text = "Not Found"


class NVMLError_GpuIsLost(NVMLError):
    value = 15
    text = "GPU is lost"


@dataclass(frozen=True, slots=True)
class Memory:
    """Result of nvmlDeviceGetMemoryInfo; bytes."""

    total: int
    free: int
    used: int


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Result of nvmlDeviceGetComputeRunningProcesses."""

    pid: int
    usedGpuMemory: int | None


@dataclass(frozen=True, slots=True)
class Rates:
    """Result of nvmlDeviceGetUtilizationRates; percent."""

    gpu: int
    memory: int


@dataclass(frozen=True, slots=True)
class _Device:
    uuid: str
    model: str
    mem_bytes: int
    idle_bytes: int


@dataclass(frozen=True, slots=True)
class _Holder:
    """A process and what it holds; together pid and start time name it."""

    pid: int
    starttime: int
    gpus: dict[str, int] = field(compare=False, hash=False)


@dataclass(frozen=True, slots=True)
class _Window:
    """CPU use of a GPU's processes up to one moment, and what it was worth."""

    at: float
    cpu_s: dict[int, float]
    percent: int


class FakeNvml:
    """Offers the functions of `pynvml` over a state directory."""

    NVMLError = NVMLError
    NVMLError_InvalidArgument = NVMLError_InvalidArgument
    NVMLError_NotFound = NVMLError_NotFound
    NVMLError_GpuIsLost = NVMLError_GpuIsLost
    nvmlMemory_v2 = 2

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._devices = _devices(state_dir)
        self._holders: set[_Holder] = set()
        self._missed_at: dict[_Holder, float] = {}
        self._windows: dict[str, _Window] = {}

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return _DRIVER_VERSION

    def nvmlDeviceGetCount(self) -> int:
        return len(self._devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> _Device:
        if not 0 <= index < len(self._devices):
            raise NVMLError_InvalidArgument
        return self._devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> _Device:
        for device in self._devices:
            if device.uuid == uuid:
                return device
        raise NVMLError_NotFound

    def nvmlDeviceGetUUID(self, handle: _Device) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: _Device) -> str:
        return handle.model

    def nvmlDeviceGetMemoryInfo(self, handle: _Device, version: int | None = None) -> Memory:
        release_after_s = self._faults(handle).get("release_after_s", {}).get(handle.uuid, 0.0)
        held = sum(holder.gpus[handle.uuid] for holder in self._holding(handle))
        now = time.monotonic()
        late = sum(
            holder.gpus.get(handle.uuid, 0)
            for holder, missed_at in self._missed_at.items()
            if now < missed_at + release_after_s
        )
        used = min(handle.idle_bytes + held + late, handle.mem_bytes)
        return Memory(total=handle.mem_bytes, free=handle.mem_bytes - used, used=used)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: _Device) -> list[ProcessInfo]:
        self._faults(handle)
        most = handle.mem_bytes - handle.idle_bytes  # nobody holds what an idle GPU needs for itself
        return [ProcessInfo(holder.pid, min(holder.gpus[handle.uuid], most)) for holder in self._holding(handle)]

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: _Device) -> list[ProcessInfo]:
        self._faults(handle)
        return []

    def nvmlDeviceGetUtilizationRates(self, handle: _Device) -> Rates:
        self._faults(handle)
        now = time.monotonic()
        last = self._windows.get(handle.uuid)
        if last is None or now - last.at >= _WINDOW_S:
            cpu_s = {holder.pid: _cpu_s(holder.pid) / len(holder.gpus) for holder in self._holding(handle)}
            last = self._windows[handle.uuid] = _Window(now, cpu_s, _percent(last, now, cpu_s))
        return Rates(gpu=last.percent, memory=0)

    def _faults(self, device: _Device) -> dict[str, Any]:
        """The faults in force. Raises GpuIsLost if that is one of them for this device."""
        faults = read_json(self._state_dir / "faults.json") or {}
        if device.uuid in faults.get("lost", []):
            raise NVMLError_GpuIsLost
        return faults

    def _holding(self, device: _Device) -> list[_Holder]:
        self._look()
        return sorted((holder for holder in self._holders if device.uuid in holder.gpus), key=lambda holder: holder.pid)

    def _look(self) -> None:
        """Take note of who lives, and of when those that do not were first missed."""
        registered = set(_registered(self._state_dir / "processes"))
        living = {holder for holder in registered if _lives(holder)}
        now = time.monotonic()
        for holder in (self._holders | registered) - living:
            self._missed_at.setdefault(holder, now)
        for holder in living & self._missed_at.keys():
            del self._missed_at[holder]  # it was checkpointed, and is back
        forgotten = [holder for holder, at in self._missed_at.items() if now - at > _LONGEST_RELEASE_S]
        for holder in forgotten:
            if holder not in registered:
                del self._missed_at[holder]
        self._holders = living


def set_up(state_dir: Path, gpus: tuple[FakeGpu, ...], keep: bool) -> bool:
    """Make the state directory hold these GPUs, under the UUIDs that they have if they are there already.

    With `keep`, others that are there stay instead, because somebody computes on them, and the answer is False.
    Raises OSError, and ValueError if the directory is broken.
    """
    (state_dir / "processes").mkdir(mode=0o700, parents=True, exist_ok=True)
    path = state_dir / "gpus.json"
    wanted = [(gpu.model, gpu.mem_bytes) for gpu in gpus]
    present = [] if read_json(path) is None else [(device.model, device.mem_bytes) for device in _devices(state_dir)]
    if present == wanted:
        return True
    if present and keep:
        return False
    fresh = [
        {"uuid": f"GPU-{uuids.uuid4()}", "model": model, "mem_bytes": mem_bytes, "idle_bytes": _IDLE_BYTES}
        for model, mem_bytes in wanted
    ]
    write_json(path, {"gpus": fresh})
    return True


def _devices(state_dir: Path) -> tuple[_Device, ...]:
    path = state_dir / "gpus.json"
    content = read_json(path) or {}
    try:
        return tuple(_Device(**gpu) for gpu in content["gpus"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} does not describe GPUs: {error}") from None


def _registered(directory: Path) -> Iterator[_Holder]:
    for path in directory.glob("[0-9]*.json"):
        try:
            content = json.loads(path.read_text())
            yield _Holder(int(content["pid"]), int(content["starttime"]), dict(content["gpus"]))
        except (OSError, ValueError, KeyError, TypeError):
            # Removed since it was listed, or not written whole: either way it registers nobody.
            continue


def _lives(holder: _Holder) -> bool:
    stat = procfs.read_stat(holder.pid)
    return stat is not None and stat.alive and stat.starttime == holder.starttime


def _cpu_s(pid: int) -> float:
    """CPU time of the process and all below it: the work is often done under a shell."""
    stat = procfs.read_stat(pid)
    own = 0.0 if stat is None else stat.cpu_s
    return own + sum(_cpu_s(child) for child in procfs.children(pid))


def _percent(last: _Window | None, now: float, cpu_s: dict[int, float]) -> int:
    if last is None:
        return 0
    # Who was not there before starts from zero; who lost a child may have used less than nothing.
    used = sum(max(0.0, now_s - last.cpu_s.get(pid, 0.0)) for pid, now_s in cpu_s.items())
    return min(100, round(100 * used / (now - last.at)))
