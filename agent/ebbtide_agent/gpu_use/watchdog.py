"""Watch how much GPU memory each attempt uses, and which attempts use more of a shared GPU than they were given.

An attempt that overruns is reported, and its neighbours are not; the master decides what happens to it. Memory that the
driver does not report for a process is estimated for the record, and an estimate is never a reason to stop an attempt.
"""

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from ebbtide_protos.v1 import agent_pb2
from ebbtide_protos.v1.job_pb2 import GpuAllocation

from ebbtide_agent.contract.attempt_dir import AttemptKey
from ebbtide_agent.gpu.backend import GpuReading
from ebbtide_agent.gpu.reader import GpuReader, Readings, listed_pids
from ebbtide_agent.gpu_use.attribution import Attribution, Owners
from ebbtide_agent.gpu_use.idle_use import IdleMemory

log = logging.getLogger(__name__)

MARGIN: Final = 1.05
"""An attempt overruns when it uses more than this many times what it was given; its CUDA context counts."""
SAMPLES: Final = 3
"""Readings in a row that have to show an overrun."""
NEARLY_FULL: Final = 0.05
"""If less than this part of the GPU's memory is free, one reading is enough, provided only one attempt overruns."""
_NEWS: Final = 1.05  # a peak that grew by less than this factor is sent only when something else is
_HURRY_S: Final = 0.5
_NO_OVERRUN: Final = ("", 0, 0)
_LIVE: Final = frozenset({agent_pb2.ATTEMPT_PHASE_RUNNING, agent_pb2.ATTEMPT_PHASE_SWAPPED})


class WatchdogAttempts(Protocol):
    """What `Watchdog` needs of the attempts."""

    def statuses(self) -> list[agent_pb2.AttemptStatus]: ...
    def allocation(self, job_id: str, attempt: int) -> tuple[GpuAllocation, ...]: ...
    def note_memory(self, seen: agent_pb2.AttemptStatus, tell: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class GpuMemoryUse:
    """The bytes that an attempt uses of one GPU; an estimate if the driver does not report them for each process."""

    used_bytes: int
    certain: bool


@dataclass(slots=True)
class _AttemptUse:
    """What was seen of one attempt; `over` counts by GPU the readings in a row in which it used too much."""

    over: dict[str, int]
    peak_bytes: int = 0
    reported_bytes: int = 0
    overrun: tuple[str, int, int] = _NO_OVERRUN  # GPU, bytes used, bytes given
    noted: tuple[int, tuple[str, int, int]] = (0, _NO_OVERRUN)


class Watchdog:
    """Looks at every heartbeat's readings, and more often while an attempt uses too much."""

    def __init__(
        self, attempts: WatchdogAttempts, reader: GpuReader, attribution: Attribution, idle: IdleMemory
    ) -> None:
        self._attempts = attempts
        self._reader = reader
        self._attribution = attribution
        self._idle = idle
        self._records: dict[AttemptKey, _AttemptUse] = {}
        self._hurrying: asyncio.Task[None] | None = None

    def look(self, readings: Readings, owners: Owners) -> None:
        """Take in readings, and the owners of the processes on those GPUs."""
        live = self._live()
        self._records = {key: self._records.get(key) or _AttemptUse({}) for key in live}
        for uuid, reading in readings.items():
            here = {key: given[uuid] for key, given in live.items() if uuid in given}
            if here:
                self._look_at(reading, here, owners)
        for key, record in self._records.items():
            self._note(key, record)
        if self._hurrying is None and any(record.over for record in self._records.values()):
            self._hurrying = asyncio.create_task(self._hurry(), name="watchdog")

    async def close(self) -> None:
        """Stop looking."""
        if self._hurrying is not None:
            self._hurrying.cancel()
            await asyncio.gather(self._hurrying, return_exceptions=True)

    def _live(self) -> dict[AttemptKey, dict[str, GpuAllocation]]:
        keys = [(status.job_id, status.attempt) for status in self._attempts.statuses() if status.phase in _LIVE]
        return {key: {gpu.uuid: gpu for gpu in self._attempts.allocation(*key)} for key in keys}

    async def _hurry(self) -> None:
        """Read the suspects' GPUs often, because the readings of three heartbeats take too long for the neighbours."""
        try:
            while suspects := {uuid for record in self._records.values() for uuid in record.over}:
                await asyncio.sleep(_HURRY_S)
                readings = await self._reader.read(sorted(suspects))
                self.look(readings, await self._attribution.owners(listed_pids(readings)))
        finally:
            self._hurrying = None

    def _look_at(self, reading: GpuReading, here: Mapping[AttemptKey, GpuAllocation], owners: Owners) -> None:
        idle_bytes = self._idle.of(reading.uuid) or 0
        uses = {key: use for key in here if (use := use_of(key, reading, owners, idle_bytes)) is not None}
        over = {key for key, use in uses.items() if use.certain and use.used_bytes > _allowed_bytes(here[key])}
        for key, use in uses.items():
            self._records[key].peak_bytes = max(self._records[key].peak_bytes, use.used_bytes)
        needed = 1 if len(over) == 1 and _is_nearly_full(reading) and _has_no_foreign(reading, owners) else SAMPLES
        for key in here:
            if key in over:
                self._count(key, here[key], uses[key].used_bytes, needed)
            elif reading.uuid in self._records[key].over:
                self._forget(key, reading.uuid)

    def _count(self, key: AttemptKey, given: GpuAllocation, used_bytes: int, needed: int) -> None:
        record = self._records[key]
        record.over[given.uuid] = record.over.get(given.uuid, 0) + 1
        if record.over[given.uuid] >= needed and not record.overrun[0]:
            record.overrun = (given.uuid, used_bytes, given.mem_bytes)
            log.warning("event=overrun job=%s attempt=%d gpu=%s used=%d given=%d", *key, *record.overrun)

    def _forget(self, key: AttemptKey, uuid: str) -> None:
        record = self._records[key]
        del record.over[uuid]
        if record.overrun[0] == uuid:
            record.overrun = _NO_OVERRUN

    def _note(self, key: AttemptKey, record: _AttemptUse) -> None:
        """Note what is new in the attempt's status. A peak that grew by little is sent only when something else is."""
        noted = (record.peak_bytes, record.overrun)
        if noted == record.noted:
            return
        is_news = record.overrun != record.noted[1] or record.peak_bytes > _NEWS * record.reported_bytes
        record.noted = noted
        record.reported_bytes = record.peak_bytes if is_news else record.reported_bytes
        seen = agent_pb2.AttemptStatus(job_id=key[0], attempt=key[1], gpu_mem_peak_bytes=record.peak_bytes)
        seen.overran_gpu, seen.overran_bytes, seen.allowed_bytes = record.overrun
        self._attempts.note_memory(seen, is_news)


def use_of(key: AttemptKey, reading: GpuReading, owners: Owners, idle_bytes: int) -> GpuMemoryUse | None:
    """Return what the attempt uses of the GPU; None if that is unknown."""
    if reading.processes is None:
        return None
    own = [process.mem_bytes for process in reading.processes if owners.get(process.pid) == key]
    if None not in own:
        return GpuMemoryUse(sum(used or 0 for used in own), certain=True)
    others = [process.mem_bytes for process in reading.processes if owners.get(process.pid) != key]
    if reading.mem_used_bytes is None or None in others:
        return None
    return GpuMemoryUse(max(0, reading.mem_used_bytes - idle_bytes - sum(used or 0 for used in others)), certain=False)


def _allowed_bytes(given: GpuAllocation) -> float:
    """Return the bytes that the attempt may use; it may fill a GPU that it does not share."""
    if given.share.numerator >= given.share.denominator or not given.mem_bytes:
        return math.inf
    return MARGIN * given.mem_bytes


def _is_nearly_full(reading: GpuReading) -> bool:
    if reading.mem_used_bytes is None or not reading.mem_total_bytes:
        return False
    return reading.mem_total_bytes - reading.mem_used_bytes < NEARLY_FULL * reading.mem_total_bytes


def _has_no_foreign(reading: GpuReading, owners: Owners) -> bool:
    return all(process.pid in owners for process in reading.processes or ())
