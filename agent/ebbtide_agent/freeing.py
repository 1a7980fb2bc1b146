"""Proof that the GPUs of an attempt that ended are free again.

The driver gives memory back some time after the last process ended, and now and then not at all. Until it has, the
GPUs belong to the attempt; after ten seconds they are reported dirty, so that nobody is started on them.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from ebbtide_protos.v1 import agent_pb2
from ebbtide_protos.v1.job_pb2 import GpuAllocation

from ebbtide_agent import procfs
from ebbtide_agent.attribution import AttemptKey, Attribution
from ebbtide_agent.gpu.backend import GpuProcess, Reading
from ebbtide_agent.gpu.reader import GpuReader, Readings, listed_pids

log = logging.getLogger(__name__)

# Context leftovers and accounting noise above what the GPU shows when idle.
TOLERANCE_BYTES = 512 * 1024 * 1024
PATIENCE_S = 10.0
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.25
_MARK_AGAIN_S = 1.0


class Ended(Protocol):
    """What is needed of the attempts."""

    def allocation(self, job_id: str, attempt: int) -> tuple[GpuAllocation, ...]: ...
    def mark_freed(self, job_id: str, attempt: int, dirty_gpus: Sequence[str]) -> None: ...


class Freeing:
    """Watches the GPUs of every attempt that exited until they are free or dirty, then marks the attempt."""

    def __init__(
        self,
        attempts: Ended,
        reader: GpuReader,
        attribution: Attribution,
        baselines: Mapping[str, int],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._attempts = attempts
        self._reader = reader
        self._attribution = attribution
        self._baselines = baselines
        self._patience_s = patience_s
        self._watches: dict[AttemptKey, asyncio.Task[None]] = {}

    def consider(self, status: agent_pb2.AttemptStatus) -> None:
        """Start to watch if the attempt has exited and is not watched or marked yet."""
        key = (status.job_id, status.attempt)
        if status.phase != agent_pb2.ATTEMPT_PHASE_EXITED or status.dirty_gpus or key in self._watches:
            return
        self._watches[key] = asyncio.create_task(self._watch(key), name=f"freeing {key[0]}.{key[1]}")

    async def close(self) -> None:
        """Stop watching; the next agent goes on with the attempts that are not marked."""
        watches = list(self._watches.values())
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def _watch(self, key: AttemptKey) -> None:
        try:
            dirty = await self._wait(key, self._attempts.allocation(*key))
            await self._mark(key, sorted(dirty))
        except Exception:
            log.exception("event=freeing-failed job=%s attempt=%d", *key)
        finally:
            del self._watches[key]

    async def _mark(self, key: AttemptKey, dirty: list[str]) -> None:
        """Mark the attempt, as soon as the disk takes it: unmarked it would hold its GPUs for ever."""
        while True:
            try:
                return self._attempts.mark_freed(*key, dirty_gpus=dirty)
            except OSError as error:
                log.error("event=mark-failed job=%s attempt=%d reason=%r", *key, str(error))
            await asyncio.sleep(_MARK_AGAIN_S)

    async def _wait(self, key: AttemptKey, allocation: tuple[GpuAllocation, ...]) -> frozenset[str]:
        """The GPUs that are still not free when patience ends; empty as soon as all are."""
        started = time.monotonic()
        held = {gpu.uuid: gpu for gpu in allocation}
        pause_s = _FIRST_PAUSE_S
        while held:
            readings = await self._reader.read(held)
            owners = self._attribution.owners(listed_pids(readings))
            held = {uuid: gpu for uuid, gpu in held.items() if not self._is_free(key, gpu, readings[uuid], owners)}
            if held and time.monotonic() - started > self._patience_s:
                log.error("event=gpus-dirty job=%s attempt=%d gpus=%s", *key, ",".join(sorted(held)))
                break
            if held:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return frozenset(held)

    def _is_free(self, key: AttemptKey, gpu: GpuAllocation, reading: Reading, owners: Mapping[int, AttemptKey]) -> bool:
        if gpu.share.numerator < gpu.share.denominator:
            return _none_left(key, reading, owners)
        others = [process for process in reading.processes or () if _is_other(process, key, owners)]
        if reading.mem_used_bytes is None or any(process.mem_bytes is None for process in others):
            return _none_left(key, reading, owners)
        own_bytes = reading.mem_used_bytes - sum(process.mem_bytes or 0 for process in others)
        return own_bytes <= self._baselines.get(gpu.uuid, 0) + TOLERANCE_BYTES


def idle_baselines(readings: Readings, held: frozenset[str]) -> dict[str, int]:
    """What each GPU shows as used when nothing runs on it; those with a process, or held by an attempt, count as 0."""
    return {
        uuid: reading.mem_used_bytes or 0
        for uuid, reading in readings.items()
        if reading.processes == () and uuid not in held
    }


def _none_left(key: AttemptKey, reading: Reading, owners: Mapping[int, AttemptKey]) -> bool:
    """Whether no process of the attempt is listed. A list that is not available proves nothing."""
    return reading.processes is not None and all(owners.get(process.pid) != key for process in reading.processes)


def _is_other(process: GpuProcess, key: AttemptKey, owners: Mapping[int, AttemptKey]) -> bool:
    """Whether the process is somebody else's for certain. One that is listed but gone may well have been ours."""
    if process.pid in owners:
        return owners[process.pid] != key
    stat = procfs.read_stat(process.pid)
    return stat is not None and stat.alive
