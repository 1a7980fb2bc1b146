"""The one door to a GPU backend: readings that cannot hold up the agent.

A driver call may never return. It is made on a thread that nothing waits for longer than the timeout, and no second
one is started while the first is stuck.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from ebbtide_agent.apart import apart
from ebbtide_agent.gpu.backend import Gpu, GpuBackend, Kind, Reading

log = logging.getLogger(__name__)

_TIMEOUT_S = 3.0
_SILENT = "NVML does not answer"

Readings = dict[str, Reading]


class GpuReader:
    """Asynchronous readings of a backend; every GPU asked for is in the answer, an unanswered one as unhealthy."""

    def __init__(self, backend: GpuBackend, timeout_s: float = _TIMEOUT_S) -> None:
        self._backend = backend
        self._timeout_s = timeout_s
        self._gpus = backend.gpus()
        self._turn = asyncio.Lock()
        self._stuck: asyncio.Future[Readings] | None = None

    @property
    def kind(self) -> Kind:
        """Who answers."""
        return self._backend.kind

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of the node."""
        return self._gpus

    async def read_all(self) -> Readings:
        """The state of every GPU by UUID."""
        return await self.read(gpu.uuid for gpu in self._gpus)

    async def gone(self, uuids: Iterable[str]) -> str:
        """One of these GPUs that is lost for certain now; empty: none is."""
        return next((uuid for uuid, reading in (await self.read(uuids)).items() if reading.gone), "")

    async def read(self, uuids: Iterable[str]) -> Readings:
        """The state of these GPUs by UUID."""
        asked = tuple(uuids)
        if not asked:
            return {}
        async with self._turn:
            if self._stuck is not None and not self._stuck.done():
                return _silent(asked)
            call = self._stuck = apart(partial(_read, self._backend, asked))
            done, _ = await asyncio.wait({call}, timeout=self._timeout_s)
        if not done:
            log.error("event=nvml-silent timeout_s=%g", self._timeout_s)
        return call.result() if done else _silent(asked)


def listed_pids(readings: Readings) -> frozenset[int]:
    """Pids of all processes that the readings list."""
    return frozenset(process.pid for reading in readings.values() for process in reading.processes or ())


def _read(backend: GpuBackend, uuids: tuple[str, ...]) -> Readings:
    return {uuid: _read_one(backend, uuid) for uuid in uuids}


def _read_one(backend: GpuBackend, uuid: str) -> Reading:
    try:
        return backend.read(uuid)
    except Exception as error:
        log.exception("event=reading-failed gpu=%s", uuid)
        return Reading(uuid, unhealthy_reason=f"cannot be read: {error}")


def _silent(uuids: tuple[str, ...]) -> Readings:
    return {uuid: Reading(uuid, unhealthy_reason=_SILENT) for uuid in uuids}
