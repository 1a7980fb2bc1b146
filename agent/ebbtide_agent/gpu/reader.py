"""Read GPUs through a backend without holding up the agent.

A call may take long, for example if it starts a process for the driver. It is made on a thread, the agent waits for it
no longer than the timeout, and no second call is started while one is under way.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from ebbtide_machine.threads import on_daemon_thread

from ebbtide_agent.gpu.backend import DeviceLink, Gpu, GpuBackend, GpuReading, GpuSettings, Kind
from ebbtide_agent.gpu.xids import words

log = logging.getLogger(__name__)

_TIMEOUT_S = 3.0
_SILENT = "NVML does not answer"

Readings = dict[str, GpuReading]


class GpuReader:
    """Reads a backend asynchronously. Every GPU asked for is in the answer; one that does not answer is unhealthy."""

    def __init__(self, backend: GpuBackend, timeout_s: float = _TIMEOUT_S) -> None:
        self._backend = backend
        self._timeout_s = timeout_s
        self._gpus = backend.gpus()
        self._turn = asyncio.Lock()
        self._stuck: asyncio.Future[tuple[tuple[Gpu, ...], Readings]] | None = None
        self._xids: dict[str, tuple[int, ...]] = {}

    @property
    def kind(self) -> Kind:
        """The backend's kind."""
        return self._backend.kind

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of the node."""
        return self._gpus

    async def links(self) -> tuple[DeviceLink, ...]:
        """Return how the GPUs of the node reach each other."""
        return await on_daemon_thread(self._backend.links)

    def settings(self, uuid: str) -> GpuSettings:
        """Return how an administrator has set the GPU. Blocks, and may do so for ever."""
        return self._backend.settings(uuid)

    def take_xids(self) -> dict[str, tuple[int, ...]]:
        """Return by UUID the Xids that came with readings since this was last called."""
        taken, self._xids = self._xids, {}
        return taken

    async def read_all(self) -> Readings:
        """Return the state of every GPU by UUID, including GPUs that are found only now."""
        return await self._read(None)

    async def gone(self, uuids: Iterable[str]) -> str:
        """Return one of these GPUs that is lost for certain now; empty if none is."""
        return next((uuid for uuid, reading in (await self.read(uuids)).items() if reading.gone), "")

    async def read(self, uuids: Iterable[str]) -> Readings:
        """Return the state of these GPUs by UUID."""
        asked = tuple(uuids)
        return await self._read(asked) if asked else {}

    async def _read(self, asked: tuple[str, ...] | None) -> Readings:
        async with self._turn:
            if self._stuck is not None and not self._stuck.done():
                return self._silent(asked)
            call = self._stuck = on_daemon_thread(partial(_read, self._backend, asked))
            done, _ = await asyncio.wait({call}, timeout=self._timeout_s)
        if not done:
            log.error("event=nvml-silent timeout_s=%g", self._timeout_s)
            return self._silent(asked)
        self._gpus, readings = call.result()
        for reading in readings.values():
            self._note_xids(reading)
        return readings

    def _note_xids(self, reading: GpuReading) -> None:
        for xid in reading.xids:
            log.warning("event=xid gpu=%s xid=%d words=%r", reading.uuid, xid, words(xid))
        if reading.xids:
            self._xids[reading.uuid] = (*self._xids.get(reading.uuid, ()), *reading.xids)

    def _silent(self, asked: tuple[str, ...] | None) -> Readings:
        uuids = (gpu.uuid for gpu in self._gpus) if asked is None else asked
        return {uuid: GpuReading(uuid, unhealthy_reason=_SILENT) for uuid in uuids}


def listed_pids(readings: Readings) -> frozenset[int]:
    """Return the pids of all processes that the readings list."""
    return frozenset(process.pid for reading in readings.values() for process in reading.processes or ())


def _read(backend: GpuBackend, asked: tuple[str, ...] | None) -> tuple[tuple[Gpu, ...], Readings]:
    """Return the GPUs there are, and the readings of those that were asked for; None: of all."""
    gpus = backend.gpus()
    uuids = tuple(gpu.uuid for gpu in gpus) if asked is None else asked
    return gpus, {uuid: _read_one(backend, uuid) for uuid in uuids}


def _read_one(backend: GpuBackend, uuid: str) -> GpuReading:
    try:
        return backend.read(uuid)
    except Exception as error:  # of the driver's library or process: the other GPUs are read all the same
        log.exception("event=reading-failed gpu=%s", uuid)
        return GpuReading(uuid, unhealthy_reason=f"cannot be read: {error}")
