"""Read GPUs through NVML's functions: those of the `pynvml` module, or of anything that offers the same ones."""

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from ebbtide_agent.gpu.backend import DeviceLink, DeviceLinkKind, Driver, Gpu, GpuProcess, GpuReading, GpuSettings, Kind
from ebbtide_agent.gpu.codes import CodeMeaning, meaning, reason
from ebbtide_agent.gpu.fake import FakeNvml
from ebbtide_agent.gpu.handles import handle_of
from ebbtide_agent.gpu.xids import FATAL, XidEvents, XidVerdicts, words
from ebbtide_agent.processes import procfs

log = logging.getLogger(__name__)

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_GPU_SENSOR = 0
_P2P_OVER_NVLINK = 2  # as a number, because pynvml's constants have a tuple among them
_P2P_OK = 0
_MIG_ON = 1
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
# Levels of nvmlDeviceGetTopologyCommonAncestor.
_TOPOLOGY = {
    0: DeviceLinkKind.SWITCH,  # on one board
    10: DeviceLinkKind.SWITCH,
    20: DeviceLinkKind.SWITCH,
    30: DeviceLinkKind.HOST_BRIDGE,
    40: DeviceLinkKind.NUMA_NODE,
    50: DeviceLinkKind.SYSTEM,
}
# The MPS server is listed with a context of its own, and belongs to no job. The kernel cuts names off after 15 bytes.
_MPS_SERVER = "nvidia-cuda-mps-server"[:15]


class NvmlLibrary(Protocol):
    """The part of NVML that every library has, under the names and with the results of `pynvml`.

    Other functions are called by name, because an older module or driver may lack them: see `NvmlBackend._answer`.
    """

    @property
    def NVMLError(self) -> type[Exception]: ...  # its instances carry NVML's code as `value`
    @property
    def nvmlMemory_v2(self) -> int: ...
    def nvmlInit(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any: ...


class NvmlUnavailable(Exception):
    """This machine has no NVML, or NVML does not start; the message says why."""


@dataclass(frozen=True, slots=True)
class _Handles:
    """The driver's handles of a GPU; sensors are asked of `whole`, the GPU that a MIG slice is cut from."""

    own: Any
    whole: Any


def numa_node_of(pci_bus_id: str) -> int | None:
    """Return the NUMA node that the kernel reports for the device with this bus id of NVML; None if it reports none."""
    domain, _, place = pci_bus_id.lower().partition(":")
    try:
        # NVML writes the domain with eight digits, the kernel with four.
        node = int((_PCI_DEVICES / f"{int(domain, 16):04x}:{place}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


class NvmlBackend:
    """A `GpuBackend` over an NVML library. Raises NvmlUnavailable if the library does not start."""

    def __init__(
        self,
        library: NvmlLibrary,
        kind: Kind = "nvml",
        numa_node: Callable[[str], int | None] = numa_node_of,
        xids_before: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`numa_node` returns the NUMA node of a PCI bus id; `xids_before` are the Xids that stand already, by UUID."""
        self.kind: Kind = kind
        self.unnamed = 0  # GPUs that the driver counts and does not name
        self._nvml = library
        self._numa_node = numa_node
        self._handles: dict[str, _Handles] = {}  # one that fails is looked up again by its GPU's UUID
        self._gpus: list[Gpu] = []
        try:
            library.nvmlInit()
            count = library.nvmlDeviceGetCount()
        except library.NVMLError as error:
            raise NvmlUnavailable(reason(error)) from None
        for index in range(count):
            self._find(index)
        self._events = XidEvents(library, self._event_sources())
        self._verdicts = XidVerdicts(library, xids_before)

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(self._gpus)

    def links(self) -> tuple[DeviceLink, ...]:
        whole = [gpu.uuid for gpu in self._gpus if not gpu.parent]
        pairs = ((one, other, self._link(one, other)) for one, other in combinations(whole, 2))
        return tuple(DeviceLink(one, other, kind) for one, other, kind in pairs if kind is not None)

    def driver(self) -> Driver:
        try:
            number = self._answer("nvmlSystemGetCudaDriverVersion_v2")
            cuda = "" if number is None else f"{number // 1000}.{number % 1000 // 10}"
            return Driver(self._answer("nvmlSystemGetDriverVersion") or "", cuda)
        except self._nvml.NVMLError as error:
            log.warning("event=driver-not-known reason=%r", reason(error))
            return Driver()

    def settings(self, uuid: str) -> GpuSettings:
        try:
            handle = self._found(uuid).whole
            persistence = self._answer("nvmlDeviceGetPersistenceMode", handle)
            mode = self._answer("nvmlDeviceGetComputeMode", handle)
            mig = self._answer("nvmlDeviceGetMigMode", handle)
        except self._nvml.NVMLError:
            self._handles.pop(uuid, None)
            return GpuSettings()
        return GpuSettings(
            persistence=None if persistence is None else bool(persistence),
            compute_mode=None if mode is None else _COMPUTE_MODES.get(mode),
            mig=None if mig is None else mig[0] == _MIG_ON,
        )

    def read(self, uuid: str) -> GpuReading:
        happened = self._events.take(uuid)
        self._verdicts.note(uuid, happened)
        try:
            handles = self._found(uuid)
            reading = self._read(uuid, handles)
            xid = self._verdicts.standing(uuid, handles.whole)
        except self._nvml.NVMLError as error:
            reading, xid = self._failed(uuid, error), self._verdicts.fatal(uuid)
        if xid is None:
            return replace(reading, xids=happened)
        return replace(reading, xids=happened, unhealthy_reason=words(xid), gone=xid in FATAL)

    def _failed(self, uuid: str, error: Exception) -> GpuReading:
        self._handles.pop(uuid, None)
        if meaning(error) is not CodeMeaning.NO_VALUE:
            return GpuReading(uuid, unhealthy_reason=reason(error), gone=meaning(error) is CodeMeaning.GPU_GONE)
        return GpuReading(uuid, unhealthy_reason="the driver does not know this GPU", gone=True)

    def _find(self, index: int) -> None:
        """Add the GPU with this number, or the slices that it is cut into."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = self._nvml.nvmlDeviceGetUUID(handle)
            mode = self._answer("nvmlDeviceGetMigMode", handle)
        except self._nvml.NVMLError as error:
            # Without its UUID a GPU has no name to be reported under.
            log.error("event=gpu-left-out index=%d reason=%r", index, reason(error))
            # A GPU that this user may not use, as in a container that was given other GPUs, is not counted.
            self.unnamed += meaning(error) is not CodeMeaning.NO_VALUE
            return
        if mode is None or mode[0] != _MIG_ON:
            self._add(uuid, _Handles(handle, handle), index)
            return
        for place in range(self._optional("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            part = self._optional("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            name = None if part is None else self._optional("nvmlDeviceGetUUID", part)
            if name is not None:
                self._add(name, _Handles(part, handle), index, parent=uuid)

    def _add(self, uuid: str, handles: _Handles, index: int, parent: str = "") -> None:
        self._handles[uuid] = handles
        capability = self._optional("nvmlDeviceGetCudaComputeCapability", handles.whole)
        bus_id = self._bus_id(handles.whole)
        gpu = Gpu(
            uuid,
            # The driver's number, unless a slice before this GPU has taken it.
            index if not self._gpus else max(index, self._gpus[-1].index + 1),
            model=self._optional("nvmlDeviceGetName", handles.own) or "unknown",
            mem_bytes=self._mem_bytes(handles.own),
            pci_bus_id=bus_id,
            numa_node=self._numa_node(bus_id) if bus_id else None,
            compute_capability="" if capability is None else f"{capability[0]}.{capability[1]}",
            parent=parent,
            minor=self._optional("nvmlDeviceGetMinorNumber", handles.whole),
        )
        self._gpus.append(gpu)

    def _mem_bytes(self, handle: Any) -> int:
        try:
            memory = self._memory(handle)
        except self._nvml.NVMLError:
            return 0
        return 0 if memory is None else int(memory.total)

    def _bus_id(self, handle: Any) -> str:
        pci = self._optional("nvmlDeviceGetPciInfo", handle)
        if pci is None:
            return ""
        return pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId)

    def _event_sources(self) -> dict[str, tuple[Any, tuple[str, ...]]]:
        """Return, by the UUID of each whole GPU, its handle and the UUIDs under which it is offered."""
        wholes = dict.fromkeys(gpu.parent or gpu.uuid for gpu in self._gpus)
        offered = {whole: tuple(gpu.uuid for gpu in self._gpus if whole in (gpu.uuid, gpu.parent)) for whole in wholes}
        return {whole: (self._handles[uuids[0]].whole, uuids) for whole, uuids in offered.items()}

    def _link(self, one: str, other: str) -> DeviceLinkKind | None:
        try:
            handles = (self._found(one).own, self._found(other).own)
        except self._nvml.NVMLError:
            return None
        if self._optional("nvmlDeviceGetP2PStatus", *handles, _P2P_OVER_NVLINK) == _P2P_OK:
            return DeviceLinkKind.NVLINK
        level = self._optional("nvmlDeviceGetTopologyCommonAncestor", *handles)
        return None if level is None else _TOPOLOGY.get(level)

    def _found(self, uuid: str) -> _Handles:
        """Return the driver's current handles of the GPU. Raises NVMLError."""
        handles = self._handles.get(uuid)
        if handles is None:
            own = handle_of(self._nvml, uuid)
            is_slice = uuid.startswith("MIG-")
            whole = self._answer("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", own) if is_slice else own
            handles = self._handles[uuid] = _Handles(own, own if whole is None else whole)
        return handles

    def _read(self, uuid: str, handles: _Handles) -> GpuReading:
        memory = self._memory(handles.own)
        rates = self._answer("nvmlDeviceGetUtilizationRates", handles.own)
        power_mw = self._answer("nvmlDeviceGetPowerUsage", handles.whole)
        total = None if memory is None else int(memory.total)
        reserved = getattr(memory, "reserved", None)
        return GpuReading(
            uuid,
            mem_used_bytes=None if memory is None else int(memory.used),
            mem_total_bytes=total,
            utilisation=None if rates is None else rates.gpu / 100,
            processes=self._processes(handles.own, total),
            mem_reserved_bytes=None if reserved is None else int(reserved),
            temperature_c=self._temperature(handles.whole),
            power_w=None if power_mw is None else power_mw / 1000,
        )

    def _memory(self, handle: Any) -> Any:
        # In the second version `used` is without what the driver reserves for itself; old drivers have only the first.
        newer = self._answer("nvmlDeviceGetMemoryInfo", handle, version=self._nvml.nvmlMemory_v2)
        return newer if newer is not None else self._answer("nvmlDeviceGetMemoryInfo", handle)

    def _temperature(self, handle: Any) -> int | None:
        older: int | None = self._answer("nvmlDeviceGetTemperature", handle, _GPU_SENSOR)
        return older if older is not None else self._answer("nvmlDeviceGetTemperatureV", handle, _GPU_SENSOR)

    def _processes(self, handle: Any, total: int | None) -> tuple[GpuProcess, ...] | None:
        direct = self._answer("nvmlDeviceGetComputeRunningProcesses_v3", handle)
        if direct is None:
            return None
        found = {
            entry.pid: GpuProcess(entry.pid, _plausible(entry.usedGpuMemory, total))
            for entry in direct
            if not _is_mps_server(entry.pid)
        }
        for entry in self._answer("nvmlDeviceGetMPSComputeRunningProcesses_v3", handle) or ():
            found[entry.pid] = GpuProcess(entry.pid, _plausible(entry.usedGpuMemory, total), mps=True)
        return tuple(found.values())

    def _answer(self, call: str, *arguments: Any, **options: Any) -> Any:
        """Return the answer to a call; None if there is none here. Raises NVMLError if something is wrong."""
        function = getattr(self._nvml, call, None)
        if function is None:
            return None  # an older module
        try:
            return function(*arguments, **options)
        except self._nvml.NVMLError as error:
            if meaning(error) is CodeMeaning.NO_VALUE:
                return None
            raise

    def _optional(self, call: str, *arguments: Any) -> Any:
        """Return the answer to a call; None if there is none for any reason, as the next reading says what is wrong."""
        try:
            return self._answer(call, *arguments)
        except self._nvml.NVMLError as error:
            log.info("event=not-known call=%s reason=%r", call, reason(error))
            return None


def open_nvml(xids_before: Mapping[str, int] = MappingProxyType({})) -> NvmlBackend:
    """Open the real GPUs of this machine. Raises NvmlUnavailable if it has no NVML library, or no working driver."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError as error:
        raise NvmlUnavailable(str(error)) from None
    return NvmlBackend(library, xids_before=xids_before)


def open_fake(state_dir: Path, xids_before: Mapping[str, int] = MappingProxyType({})) -> NvmlBackend:
    """Open the fake GPUs of this directory. Raises NvmlUnavailable, and ValueError if it describes none."""
    library = FakeNvml(state_dir)
    return NvmlBackend(library, "fake", library.numa_node, xids_before)


def has_real_gpus() -> bool:
    """Return whether this machine has at least one GPU that NVML can name."""
    try:
        return bool(open_nvml().gpus())
    except NvmlUnavailable:
        return False


def _plausible(used: int | None, total: int | None) -> int | None:
    # Driver and binding once disagreed on the layout of this struct. A process cannot hold more than the GPU has.
    return None if used is None or (total is not None and used > total) else int(used)


def _is_mps_server(pid: int) -> bool:
    stat = procfs.read_stat(pid)
    return stat is not None and stat.command == _MPS_SERVER
