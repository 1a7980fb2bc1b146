"""Offer NVML's functions over a directory of files, so that fake GPUs are read by the same code as real ones.

    gpus.json
        {"driver": "580.65.06", "cuda": "13.0", "gpus": [...], "nvlinks": [[uuid, uuid], ...],
         "switches": [[uuid, ...], ...]}. Of each GPU: "uuid", "model", "mem_bytes", "idle_bytes", and what may be
        missing: "reserved_bytes", "pci_bus_id", "numa_node" (or null), "compute_capability", "persistence" (bool),
        "compute_mode" (NVML's number), "mig" (true: its slices are offered in its place), "parent" (the UUID of the GPU
        that this slice is cut from)
    processes/<pid>.json
        {"pid", "starttime", "gpus": {uuid: bytes, or null for not available}, "mps": whether through an MPS server}:
        written by the program that starts the process
    faults.json, read anew at every call
        "lost": [uuid], "release_after_s": {uuid: seconds}, "no_memory": [uuid] (what a process holds is not available),
        "errors": {uuid or "*": {function: code}}, "hang": [function] (the call never returns),
        "xids": [{"uuid", "xid", "number"}] (reported in the order of their numbers, once to each event set),
        "recovery": {uuid: the recovery action that the GPU asks for}, "order": [uuid] (the driver's after a reboot),
        "driver", "host_room_bytes": see swap/fake.py

A process that has ended holds nothing, whether its file is still there or not. `release_after_s` makes its memory stay
for some seconds after the process was first missed, with no process shown for it, like a driver that is slow to clean
up. GPUs that "switches" names together reach each other through a PCIe switch, others with different NUMA nodes over
the system, the rest over a host bridge. A fault names a function as in C, or without its version to mean every version.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Concatenate, Final, NoReturn, ParamSpec, TypeVar

from ebbtide_agent.gpu.fake_state import (
    CUDA,
    DRIVER,
    Cached,
    Device,
    FakeProcess,
    lives,
    read_holders,
    read_node,
    set_up,
)
from ebbtide_agent.jsonfile import read_json
from ebbtide_agent.processes import procfs

__all__ = ["FakeNvml", "NVMLError", "set_up"]

P = ParamSpec("P")
T = TypeVar("T")

# As in the driver, utilisation is a mean over a window; a shorter one would show only the jitter of CPU accounting.
_WINDOW_S = 0.5
# Seconds that an ended process is remembered, because its memory may be released late.
_LONGEST_RELEASE_S = 60.0
_NVLINK = 2
_XID_EVENT = 0x8
_MOST_SLICES = 7

_TEXTS: Final = {
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    10: "Timeout",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    16: "GPU requires restart",
    18: "Driver/library version mismatch",
    25: "Argument Version Mismatch",
    28: "GPU not found",
}
_INVALID_ARGUMENT, _NOT_SUPPORTED, _NOT_FOUND, _TIMEOUT, _GPU_IS_LOST = 2, 3, 6, 10, 15


class NVMLError(Exception):
    """An error of NVML; `value` is its code."""

    def __init__(self, value: int) -> None:
        super().__init__(_TEXTS.get(value, "Unknown Error"))
        self.value = value


@dataclass(frozen=True, slots=True)
class Memory:
    """Result of nvmlDeviceGetMemoryInfo; bytes."""

    total: int
    free: int
    used: int
    reserved: int | None = None  # None: the function's first version, which counts this memory as used


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Result of nvmlDeviceGetComputeRunningProcesses."""

    pid: int
    usedGpuMemory: int | None


@dataclass(frozen=True, slots=True)
class NvmlUtilization:
    """Result of nvmlDeviceGetUtilizationRates; percent."""

    gpu: int
    memory: int


@dataclass(frozen=True, slots=True)
class PciInfo:
    """Result of nvmlDeviceGetPciInfo."""

    busId: str


@dataclass(frozen=True, slots=True)
class NvmlEvent:
    """Result of nvmlEventSetWait_v2."""

    device: Device
    eventType: int
    eventData: int


@dataclass(frozen=True, slots=True)
class Value:
    """A number, under the name that it has in the union of NVML's field values."""

    uiVal: int


@dataclass(frozen=True, slots=True)
class FieldValue:
    """One result of nvmlDeviceGetFieldValues."""

    nvmlReturn: int
    value: Value


@dataclass(slots=True)
class _EventSet:
    devices: dict[str, Device] = field(default_factory=dict)
    last_xid: int = 0  # number of the last Xid


@dataclass(frozen=True, slots=True)
class _CpuReading:
    """CPU seconds of a GPU's processes up to one moment, and the utilisation that they made until then."""

    at: float
    cpu_s: dict[int, float]
    percent: int


Call = Callable[Concatenate["FakeNvml", P], T]


def _named(name: str) -> Callable[[Call[P, T]], Call[P, T]]:
    """Give a function of NVML the name that it has in C, so that the faults in force apply before it runs."""

    def decorate(function: Call[P, T]) -> Call[P, T]:
        def call(self: "FakeNvml", /, *arguments: P.args, **options: P.kwargs) -> T:
            on = arguments[0] if arguments else None
            self.suffer(name, on.uuid if isinstance(on, Device) else on if isinstance(on, str) else "")
            return function(self, *arguments, **options)

        return call

    return decorate


class FakeNvml:
    """Offers the functions of `pynvml` over a state directory."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 2

    def __init__(self, state_dir: Path) -> None:
        """Raises ValueError if the directory does not describe GPUs."""
        self._node, self._devices = read_node(state_dir / "gpus.json")
        self._faults = Cached(state_dir / "faults.json", lambda path: read_json(path) or {})
        self._registered = Cached(state_dir / "processes", lambda path: tuple(read_holders(path)))
        self._living: set[FakeProcess] = set()
        self._missed_at: dict[FakeProcess, float] = {}
        self._windows: dict[str, _CpuReading] = {}

    def numa_node(self, pci_bus_id: str) -> int | None:
        """Return the NUMA node that the kernel would report for the GPU with this bus id; None if it has none."""
        return next((device.numa_node for device in self._devices.values() if device.pci_bus_id == pci_bus_id), None)

    @_named("nvmlInitWithFlags")
    def nvmlInit(self) -> None:
        pass

    @_named("nvmlShutdown")
    def nvmlShutdown(self) -> None:
        pass

    @_named("nvmlSystemGetDriverVersion")
    def nvmlSystemGetDriverVersion(self) -> str:
        return str(self._node.get("driver", DRIVER))

    @_named("nvmlSystemGetCudaDriverVersion_v2")
    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        major, _, minor = str(self._node.get("cuda", CUDA)).partition(".")
        return int(major) * 1000 + int(minor or 0) * 10

    @_named("nvmlDeviceGetCount_v2")
    def nvmlDeviceGetCount(self) -> int:
        return len(self._whole())

    @_named("nvmlDeviceGetHandleByIndex_v2")
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        whole = self._whole()
        if not 0 <= index < len(whole):
            raise NVMLError(_INVALID_ARGUMENT)
        self.suffer("nvmlDeviceGetHandleByIndex_v2", whole[index].uuid)
        return whole[index]

    @_named("nvmlDeviceGetHandleByUUID")
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:
        if uuid not in self._devices:
            raise NVMLError(_NOT_FOUND)
        if not self._devices.keys().isdisjoint(self._faults.value().get("lost", ())):
            raise NVMLError(_GPU_IS_LOST)  # the driver looks at every GPU on its way
        return self._devices[uuid]

    @_named("nvmlDeviceGetUUID")
    def nvmlDeviceGetUUID(self, handle: Device) -> str:
        return handle.uuid

    @_named("nvmlDeviceGetName")
    def nvmlDeviceGetName(self, handle: Device) -> str:
        return handle.model

    @_named("nvmlDeviceGetPciInfo_v3")
    def nvmlDeviceGetPciInfo(self, handle: Device) -> PciInfo:
        return PciInfo(handle.pci_bus_id or _not_supported())

    @_named("nvmlDeviceGetMinorNumber")
    def nvmlDeviceGetMinorNumber(self, handle: Device) -> int:
        return _not_supported() if handle.minor is None else handle.minor

    @_named("nvmlDeviceGetCudaComputeCapability")
    def nvmlDeviceGetCudaComputeCapability(self, handle: Device) -> tuple[int, int]:
        major, _, minor = (handle.compute_capability or _not_supported()).partition(".")
        return int(major), int(minor)

    @_named("nvmlDeviceGetPersistenceMode")
    def nvmlDeviceGetPersistenceMode(self, handle: Device) -> int:
        return _not_supported() if handle.persistence is None else int(handle.persistence)

    @_named("nvmlDeviceGetComputeMode")
    def nvmlDeviceGetComputeMode(self, handle: Device) -> int:
        return _not_supported() if handle.compute_mode is None else handle.compute_mode

    @_named("nvmlDeviceGetMigMode")
    def nvmlDeviceGetMigMode(self, handle: Device) -> list[int]:
        return _not_supported() if handle.mig is None else [int(handle.mig)] * 2

    @_named("nvmlDeviceGetMaxMigDeviceCount")
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Device) -> int:
        return _MOST_SLICES if handle.mig else 0

    @_named("nvmlDeviceGetMigDeviceHandleByIndex")
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Device, index: int) -> Device:
        slices = [device for device in self._devices.values() if device.parent == handle.uuid]
        if index >= len(slices):
            raise NVMLError(_NOT_FOUND)
        return slices[index]

    @_named("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Device) -> Device:
        if handle.parent not in self._devices:
            raise NVMLError(_INVALID_ARGUMENT)
        return self._devices[handle.parent]

    @_named("nvmlDeviceGetTopologyCommonAncestor")
    def nvmlDeviceGetTopologyCommonAncestor(self, one: Device, other: Device) -> int:
        single, host_bridge, system = 10, 30, 50
        if self._together("switches", one, other):
            return single
        nodes = {one.numa_node, other.numa_node}
        return system if len(nodes) == 2 and None not in nodes else host_bridge

    @_named("nvmlDeviceGetP2PStatus")
    def nvmlDeviceGetP2PStatus(self, one: Device, other: Device, index: int) -> int:
        ok, not_supported = 0, 5
        return ok if index == _NVLINK and self._together("nvlinks", one, other) else not_supported

    def nvmlDeviceGetMemoryInfo(self, handle: Device, version: int | None = None) -> Memory:
        self.suffer("nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo", handle.uuid)
        offered, used = handle.mem_bytes - handle.reserved_bytes, self._used(handle)
        if not version:
            return Memory(total=handle.mem_bytes, free=offered - used, used=used + handle.reserved_bytes)
        return Memory(total=handle.mem_bytes, free=offered - used, used=used, reserved=handle.reserved_bytes)

    @_named("nvmlDeviceGetComputeRunningProcesses_v3")
    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Device) -> list[ProcessInfo]:
        return self._listed(handle, mps=False)

    @_named("nvmlDeviceGetMPSComputeRunningProcesses_v3")
    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: Device) -> list[ProcessInfo]:
        return self._listed(handle, mps=True)

    @_named("nvmlDeviceGetUtilizationRates")
    def nvmlDeviceGetUtilizationRates(self, handle: Device) -> NvmlUtilization:
        if handle.mig or handle.parent:
            _not_supported()
        return NvmlUtilization(gpu=self._utilisation(handle), memory=0)

    @_named("nvmlDeviceGetTemperature")
    def nvmlDeviceGetTemperature(self, handle: Device, sensor: int) -> int:
        return 35 + self._last_percent(handle) // 2

    @_named("nvmlDeviceGetPowerUsage")
    def nvmlDeviceGetPowerUsage(self, handle: Device) -> int:
        return 25_000 + 3_000 * self._last_percent(handle)

    @_named("nvmlDeviceGetFieldValues")
    def nvmlDeviceGetFieldValues(self, handle: Device, fields: list[int]) -> list[FieldValue]:
        asked = self._faults.value().get("recovery", {}).get(handle.uuid)
        return [FieldValue(_NOT_SUPPORTED if asked is None else 0, Value(int(asked or 0))) for _ in fields]

    @_named("nvmlEventSetCreate")
    def nvmlEventSetCreate(self) -> _EventSet:
        return _EventSet()

    @_named("nvmlDeviceGetSupportedEventTypes")
    def nvmlDeviceGetSupportedEventTypes(self, handle: Device) -> int:
        return _XID_EVENT

    @_named("nvmlDeviceRegisterEvents")
    def nvmlDeviceRegisterEvents(self, handle: Device, types: int, events: _EventSet) -> None:
        events.devices[handle.uuid] = handle

    @_named("nvmlEventSetWait_v2")
    def nvmlEventSetWait_v2(self, events: _EventSet, timeout_ms: int) -> NvmlEvent:
        """Return the next Xid. It is looked for once, whatever the timeout, because the caller never waits."""
        waiting = [xid for xid in self._faults.value().get("xids", []) if xid["number"] > events.last_xid]
        for xid in sorted((xid for xid in waiting if xid["uuid"] in events.devices), key=lambda xid: xid["number"]):
            events.last_xid = xid["number"]
            return NvmlEvent(events.devices[xid["uuid"]], _XID_EVENT, int(xid["xid"]))
        raise NVMLError(_TIMEOUT)

    def room(self, uuid: str) -> tuple[int, int]:
        """Return the bytes of this GPU that processes can still get, and all its bytes, whatever the faults say.

        Raises ValueError if there is no such GPU.
        """
        device = self._devices.get(uuid)
        if device is None:
            raise ValueError(f"no fake GPU {uuid}")
        return device.mem_bytes - device.reserved_bytes - self._used(device), device.mem_bytes

    def suffer(self, call: str, uuid: str) -> None:
        """Apply the faults in force to a call: it may hang. Raises NVMLError."""
        faults = self._faults.value()
        if not faults:
            return
        if any(_hits(name, call) for name in faults.get("hang", ())):
            _hang()
        errors = faults.get("errors", {})
        for name, code in [*errors.get(uuid, {}).items(), *errors.get("*", {}).items()]:
            if _hits(name, call):
                raise NVMLError(int(code))
        device = self._devices.get(uuid)
        if device is not None and not {uuid, device.parent}.isdisjoint(faults.get("lost", ())):
            raise NVMLError(_GPU_IS_LOST)

    def _whole(self) -> list[Device]:
        """Return the whole GPUs in the driver's order."""
        order: list[str] = self._faults.value().get("order", [])
        whole = [device for device in self._devices.values() if not device.parent]
        return sorted(whole, key=lambda device: order.index(device.uuid) if device.uuid in order else len(order))

    def _together(self, groups: str, one: Device, other: Device) -> bool:
        return any(one.uuid in group and other.uuid in group for group in self._node.get(groups, ()))

    def _used(self, device: Device) -> int:
        release_after_s = self._faults.value().get("release_after_s", {}).get(device.uuid, 0.0)
        held = sum(holder.gpus[device.uuid] or 0 for holder in self._holding(device))
        now = time.monotonic()
        late = sum(
            holder.gpus.get(device.uuid) or 0
            for holder, missed_at in self._missed_at.items()
            if now < missed_at + release_after_s
        )
        return min(device.idle_bytes + held + late, device.mem_bytes - device.reserved_bytes)

    def _listed(self, device: Device, mps: bool) -> list[ProcessInfo]:
        most = device.mem_bytes - device.idle_bytes  # no process holds what an idle GPU needs for itself
        silent = device.uuid in self._faults.value().get("no_memory", ())
        held = {holder.pid: holder.gpus[device.uuid] for holder in self._holding(device) if holder.mps is mps}
        return [
            ProcessInfo(pid, None if silent or mem_bytes is None else min(mem_bytes, most))
            for pid, mem_bytes in held.items()
        ]

    def _utilisation(self, device: Device) -> int:
        now = time.monotonic()
        last = self._windows.get(device.uuid)
        if last is None or now - last.at >= _WINDOW_S:
            cpu_s = {holder.pid: _cpu_s(holder.pid) / len(holder.gpus) for holder in self._holding(device)}
            last = self._windows[device.uuid] = _CpuReading(now, cpu_s, _percent(last, now, cpu_s))
        return last.percent

    def _last_percent(self, device: Device) -> int:
        window = self._windows.get(device.uuid)
        return 0 if window is None else window.percent

    def _holding(self, device: Device) -> list[FakeProcess]:
        """Return the living processes on this GPU, and note those that are missing for the first time."""
        now = time.monotonic()
        registered = self._registered.value()
        candidates = [holder for holder in {*registered, *self._living} if device.uuid in holder.gpus]
        living = [holder for holder in registered if device.uuid in holder.gpus and lives(holder)]
        for holder in candidates:
            if holder in living:
                self._missed_at.pop(holder, None)  # the process may have been checkpointed, and is back
            else:
                self._missed_at.setdefault(holder, now)
        self._living = (self._living - set(candidates)) | set(living)
        forgotten = [holder for holder, at in self._missed_at.items() if now - at > _LONGEST_RELEASE_S]
        for holder in forgotten:
            if holder not in registered:
                del self._missed_at[holder]
        return sorted(living, key=lambda holder: holder.pid)


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of the process and all below it, because the work is often done under a shell."""
    stat = procfs.read_stat(pid)
    own = 0.0 if stat is None else stat.cpu_s
    return own + sum(_cpu_s(child) for child in procfs.children(pid))


def _percent(last: _CpuReading | None, now: float, cpu_s: dict[int, float]) -> int:
    if last is None:
        return 0
    # A new process starts from zero; one that has lost a child may seem to have used less than before.
    used = sum(max(0.0, now_s - last.cpu_s.get(pid, 0.0)) for pid, now_s in cpu_s.items())
    return min(100, round(100 * used / (now - last.at)))


def _hits(name: str, call: str) -> bool:
    rest = call.removeprefix(name)
    return call.startswith(name) and (not rest or rest.startswith("_v") or rest == "WithFlags")


def _not_supported() -> NoReturn:
    raise NVMLError(_NOT_SUPPORTED)


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)
