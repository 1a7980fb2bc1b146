"""Prove that the GPUs of an attempt that has ended are free again.

The driver gives memory back some time after the last process has ended, and now and then not at all. Until it has, the
GPUs belong to the attempt, and processes of the attempt that are still on them are killed. After ten seconds the GPUs
are reported dirty, with the reason, so that no job is started on them. A GPU that is lost for certain is reported at
once.
"""

import asyncio
import logging
import signal
from collections.abc import Callable

from ebbtide_protos.v1.job_pb2 import GpuAllocation

from ebbtide_agent.contract.attempt_dir import AttemptKey
from ebbtide_agent.gpu.backend import GpuProcess, GpuReading
from ebbtide_agent.gpu.reader import GpuReader, Readings, listed_pids
from ebbtide_agent.gpu_use.attribution import Attribution, Owners
from ebbtide_agent.gpu_use.idle_use import TOLERANCE_BYTES, IdleMemory

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.25
_PIDS_NAMED = 5
_GIB = 1024**3


class Freeing:
    """Watches the GPUs of an attempt that exited until they are free or dirty."""

    def __init__(
        self,
        is_over: Callable[[str, int], bool],
        reader: GpuReader,
        attribution: Attribution,
        idle: IdleMemory,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`is_over` says whether an attempt is proven to have ended."""
        self._is_over = is_over
        self._reader = reader
        self._attribution = attribution
        self._idle = idle
        self._patience_s = patience_s

    async def prove_free(self, key: AttemptKey, allocation: tuple[GpuAllocation, ...]) -> dict[str, str]:
        """Wait until the GPUs of an attempt that has ended are free; return those that do not become free, and why."""
        dirty = await self._wait(key, allocation)
        self._idle.mark_stuck(dirty)
        return dirty

    def look(self, readings: Readings, owners: Owners) -> None:
        """Kill what is left of attempts that are over; it may be found only after the GPU was given up as dirty."""
        for key in set(owners.values()):
            if self._is_over(*key):
                self._end_leftovers(key, readings)

    async def _wait(self, key: AttemptKey, allocation: tuple[GpuAllocation, ...]) -> dict[str, str]:
        """Wait until each GPU is free or lost, or patience ends; return those that are not free, and why."""
        clock = asyncio.get_running_loop().time
        started = clock()
        held, lost = [gpu.uuid for gpu in allocation], dict[str, str]()
        pause_s = _FIRST_PAUSE_S
        while held:
            readings = await self._reader.read(held)
            lost |= {uuid: f"the GPU is gone: {seen.unhealthy_reason}" for uuid, seen in readings.items() if seen.gone}
            owners = await self._attribution.owners(listed_pids(readings))
            self._end_leftovers(key, readings)
            reasons = {uuid: self._reason(key, uuid, readings[uuid], owners) for uuid in held if uuid not in lost}
            held = [uuid for uuid, reason in reasons.items() if reason]
            if held and clock() - started > self._patience_s:
                lost |= {uuid: reasons[uuid] for uuid in held}
                break
            if held:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        for uuid, reason in lost.items():
            log.error("event=gpu-dirty job=%s attempt=%d gpu=%s reason=%r", *key, uuid, reason)
        return lost

    def _reason(self, key: AttemptKey, uuid: str, reading: GpuReading, owners: Owners) -> str:
        """Return why the GPU is not free of the attempt; empty if it is."""
        own = [process.pid for process in reading.processes or () if owners.get(process.pid) == key]
        if own:
            return f"its process {', '.join(map(str, own[:_PIDS_NAMED]))} does not end"
        others = [process for process in reading.processes or () if self._is_other(process, owners)]
        if reading.mem_used_bytes is None and reading.processes is None:
            return f"the GPU cannot be read: {reading.unhealthy_reason or 'no memory and no processes to be seen'}"
        if reading.mem_used_bytes is None or any(process.mem_bytes is None for process in others):
            # A listed process whose owner is not known may be one of the attempt's.
            gone = [process.pid for process in reading.processes or () if process not in others]
            return f"the driver still lists process {gone[0]}, which has ended or hangs" if gone else ""
        left = reading.mem_used_bytes - sum(process.mem_bytes or 0 for process in others)
        left -= self._idle.of(uuid) or 0
        return f"{left / _GIB:.1f} GiB are in use, and no process has them" if left > TOLERANCE_BYTES else ""

    def _is_other(self, process: GpuProcess, owners: Owners) -> bool:
        """Return whether the process is certainly not the attempt's, of which no known process is on the GPU."""
        return process.pid in owners or self._attribution.is_foreign(process.pid)

    def _end_leftovers(self, key: AttemptKey, readings: Readings) -> None:
        """Kill the processes on its GPUs that are proven to be the attempt's, which is over."""
        for process in self._attribution.living(key, listed_pids(readings)):
            if process.signal(signal.SIGKILL):
                log.warning("event=leftover-killed job=%s attempt=%d pid=%d", *key, process.pid)
