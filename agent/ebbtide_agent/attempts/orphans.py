"""Watches orphans: attempts that still have processes here, but whose directory, with the agent's record, is lost.

They go on and hold their GPUs. Their exit code cannot be found out: when no process is left, the attempt is reported as
lost. Their processes are recognised by what only this node's agents can have given to them.
"""

import asyncio
import logging
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from ebbtide_machine.process import Identity
from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import agent_pb2, job_pb2

from ebbtide_agent.attempts import survivors
from ebbtide_agent.attempts.release import Gpus, Release
from ebbtide_agent.attempts.translation import freed
from ebbtide_agent.contract.attempt_dir import AttemptDir, AttemptKey

LOOK_S: Final = 0.5
_ONE: Final = job_pb2.Share(numerator=1, denominator=1)
_ALL_BYTES: Final = 1 << 53  # an orphan's memory allocation is unknown, so no use counts as too much

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Orphan:
    processes: Sequence[Identity]
    status: agent_pb2.AttemptStatus
    kill_at: float = field(default=math.inf)  # the loop's time
    release: Release | None = None  # once it has ended, until its GPUs are proven free

    @property
    def is_over(self) -> bool:
        return self.status.phase != agent_pb2.ATTEMPT_PHASE_RUNNING


class Orphans:
    """Watches orphans until they end, and calls `on_change` with each new status."""

    def __init__(self, node_dir: Path, gpus: Gpus, on_change: Callable[[agent_pb2.AttemptStatus], None]) -> None:
        self._node_dir = node_dir
        self._gpus = gpus
        self._on_change = on_change
        self._orphans: dict[AttemptKey, _Orphan] = {}
        self._watching: asyncio.Task[None] | None = None

    async def take(self, found: Mapping[AttemptKey, Sequence[Identity]]) -> None:
        """Watch these attempts, and report them."""
        for key, processes in found.items():
            if key in self._orphans:
                continue
            status = agent_pb2.AttemptStatus(job_id=key[0], attempt=key[1], orphan=True)
            status.phase = agent_pb2.ATTEMPT_PHASE_RUNNING
            place = AttemptDir.of(self._node_dir, *key)
            status.gpus.extend(await on_daemon_thread(partial(survivors.gpus_of, place, processes)))
            self._orphans[key] = _Orphan(processes, status)
            log.error("event=orphan job=%s attempt=%d pids=%s", *key, [process.pid for process in processes])
            self._on_change(status)
        if self._orphans and self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="orphans")

    async def close(self) -> None:
        """Stop watching; the orphans go on."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*(known.release.close() for known in self._orphans.values() if known.release is not None))

    def status(self, key: AttemptKey) -> agent_pb2.AttemptStatus | None:
        """Return the attempt's status; None if it is not an orphan."""
        known = self._orphans.get(key)
        return None if known is None else known.status

    def statuses(self) -> list[agent_pb2.AttemptStatus]:
        """Return the statuses of all orphans that are not forgotten."""
        return [orphan.status for orphan in self._orphans.values()]

    def pids(self) -> dict[AttemptKey, tuple[int, ...]]:
        """Return the pids of each orphan that is not over."""
        running = ((key, orphan) for key, orphan in list(self._orphans.items()) if not orphan.is_over)
        return {key: tuple(process.pid for process in orphan.processes) for key, orphan in running}

    def alive(self) -> frozenset[AttemptKey]:
        """Return the orphans of which a process that was found lives."""
        known = self._orphans.items()
        return frozenset(key for key, orphan in known if any(process.is_alive() for process in orphan.processes))

    def allocation(self, key: AttemptKey) -> tuple[job_pb2.GpuAllocation, ...]:
        """Return the GPUs that the orphan sees, as whole GPUs, because its shares are not known any more."""
        known = self._orphans.get(key)
        uuids = () if known is None else known.status.gpus
        return tuple(job_pb2.GpuAllocation(uuid=uuid, share=_ONE, mem_bytes=_ALL_BYTES) for uuid in uuids)

    def stop(self, key: AttemptKey, grace_s: float) -> bool:
        """Ask the attempt to end within the grace period. Return whether it is an orphan."""
        known = self._orphans.get(key)
        if known is None:
            return False
        if not known.is_over:
            if known.kill_at == math.inf:
                for process in known.processes:
                    process.signal(signal.SIGTERM)
                    process.signal(signal.SIGCONT)
            known.kill_at = min(known.kill_at, asyncio.get_running_loop().time() + grace_s)
        return True

    def forget(self, key: AttemptKey) -> None:
        """Drop an orphan that is over."""
        known = self._orphans.get(key)
        if known is not None and known.is_over:
            del self._orphans[key]
            if known.release is not None:
                known.release.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now = asyncio.get_running_loop().time()
            for key, orphan in list(self._orphans.items()):
                try:
                    if not orphan.is_over:
                        await self._look_at(key, orphan, now)
                except Exception:  # such as that there can be no thread; nothing else would see how the orphan ends
                    log.exception("event=orphan-unknown job=%s attempt=%d", *key)

    async def _look_at(self, key: AttemptKey, orphan: _Orphan, now: float) -> None:
        """Kill the orphan if its grace period is over, and record its end when it has no process left."""
        ends = now >= orphan.kill_at
        if not ends and any(process.is_alive() for process in orphan.processes):
            return
        # It may have started more processes meanwhile, and those that sleep in the kernel may not be found again.
        found = await on_daemon_thread(partial(survivors.by_any_sign, self._node_dir))
        known = [process for process in orphan.processes if process.is_alive()]
        orphan.processes = list(dict.fromkeys([*known, *found.get(key, [])]))
        for process in orphan.processes if ends else ():
            process.signal(signal.SIGKILL)
        if not orphan.processes:
            status = agent_pb2.AttemptStatus()
            status.CopyFrom(orphan.status)
            status.phase, status.lost = agent_pb2.ATTEMPT_PHASE_EXITED, True
            self._change(orphan, status)
            note = partial(self._note_freed, orphan)
            orphan.release = Release(key, self.allocation(key), self._gpus, note)

    def _note_freed(self, orphan: _Orphan, dirty: Mapping[str, str]) -> None:
        self._change(orphan, freed(orphan.status, dirty))

    def _change(self, orphan: _Orphan, status: agent_pb2.AttemptStatus) -> None:
        orphan.status = status
        self._on_change(status)
