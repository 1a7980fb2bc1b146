"""Offer only some of a machine's GPUs, so that several agents, or another scheduler, can share the machine."""

import hashlib
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ebbtide_agent.gpu.backend import DeviceLink, Driver, Gpu, GpuBackend, GpuReading, GpuSettings, Kind


def choose(gpus: Sequence[Gpu], names: Iterable[str]) -> frozenset[str]:
    """Return the UUIDs of the GPUs that are named by UUID or index; a GPU that is cut into slices names them all.

    Raises ValueError for a name that no GPU has, and for a GPU that is named twice.
    """
    chosen = set[str]()
    for name in names:
        found = {gpu.uuid for gpu in gpus if name in (gpu.uuid, gpu.parent, str(gpu.index))}
        if not found:
            there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
            raise ValueError(f"--only-gpus {name}: there is no such GPU; there are {there}")
        if twice := found & chosen:
            raise ValueError(f"--only-gpus {name}: {min(twice)} is named twice")
        chosen |= found
    return frozenset(chosen)


@contextmanager
def claimed(uuids: Iterable[str], state_dir: Path | None) -> Iterator[None]:
    """Claim GPUs for this process, until it ends at the latest. Raises ValueError if another agent has one of them.

    Any account may have an agent on the machine, so a claim is a name that only one process of the machine can have.
    With `state_dir`, the GPUs are fake ones, which only agents with that directory share.
    """
    with ExitStack() as claims:
        for uuid in sorted(uuids):
            which = hashlib.sha256(f"{state_dir or ''}/{uuid}".encode()).hexdigest()
            claim = claims.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                claim.bind(f"\0ebbtide-gpu-{which}")
            except OSError:
                raise ValueError(f"--only-gpus: another process on this machine has claimed {uuid}") from None
        yield


class ChosenGpus:
    """A backend with only the chosen GPUs of another one."""

    def __init__(self, backend: GpuBackend, uuids: frozenset[str]) -> None:
        self._backend = backend
        self._uuids = uuids

    @property
    def kind(self) -> Kind:
        return self._backend.kind

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self._backend.gpus() if gpu.uuid in self._uuids)

    def links(self) -> tuple[DeviceLink, ...]:
        return tuple(link for link in self._backend.links() if {link.one, link.other} <= self._uuids)

    def driver(self) -> Driver:
        return self._backend.driver()

    def settings(self, uuid: str) -> GpuSettings:
        return self._backend.settings(uuid)

    def read(self, uuid: str) -> GpuReading:
        return self._backend.read(uuid)
