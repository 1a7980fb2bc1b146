"""Run the administrator's command for foreign processes on this node's GPUs.

The command is run without a shell, as the agent's user, once for each foreign process that stays. Its environment says
what is known of the process. How many commands run at once, and for how long, is bounded; failures are logged.
"""

import asyncio
import logging
import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from ebbtide_agent.gpu.backend import GpuProcess
from ebbtide_agent.gpu.reader import Readings
from ebbtide_agent.gpu_use.attribution import Owners
from ebbtide_agent.gpu_use.telemetry import who
from ebbtide_agent.processes import procfs

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
"""The most commands that run at the same time; a process that appears meanwhile is reported when one has ended."""
TIME_S: Final = 10.0
"""Seconds after which a command is killed."""
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "USER", "LOGNAME")


def parse_command(text: str) -> tuple[str, ...]:
    """Return the command that is run for a foreign process. Raises ValueError if it cannot be parsed or is empty."""
    try:
        command = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"--on-foreign: {error}") from None
    if text and not command:
        raise ValueError("--on-foreign: the command is empty")
    return command


class ForeignProcessNotifier:
    """Takes in readings, and runs the command once for each foreign process."""

    def __init__(
        self, command: tuple[str, ...], node: str, is_foreign: Callable[[int], bool], time_s: float = TIME_S
    ) -> None:
        """`is_foreign` says whether a process certainly belongs to no attempt here."""
        self._command = command
        self._node = node
        self._is_foreign = is_foreign
        self._time_s = time_s
        self._seen = frozenset[int]()  # foreign at the last look; a process is reported only if it stays until the next
        self._reported: dict[int, int] = {}  # start times by pid
        self._running: dict[int, asyncio.Task[None]] = {}

    def look(self, readings: Readings, owners: Owners) -> None:
        """Take in readings, and the owners of the processes on those GPUs; processes without an owner are foreign."""
        found: dict[int, dict[str, GpuProcess]] = {}
        for uuid, reading in readings.items():
            for process in reading.processes or ():
                if process.pid not in owners and self._is_foreign(process.pid):
                    found.setdefault(process.pid, {})[uuid] = process
        if all(reading.processes is not None for reading in readings.values()):
            self._reported = {pid: starttime for pid, starttime in self._reported.items() if pid in found}
        for pid in sorted(found.keys() & self._seen):
            if len(self._running) < AT_ONCE:
                self._tell_once(pid, found[pid])
        self._seen = frozenset(found)

    async def close(self) -> None:
        """End the commands that run."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _tell_once(self, pid: int, uses: Mapping[str, GpuProcess]) -> None:
        stat = procfs.read_stat(pid)
        if stat is None or not stat.alive or self._reported.get(pid) == stat.starttime or pid in self._running:
            return
        self._reported[pid] = stat.starttime
        task = asyncio.create_task(self._run(pid, self._facts(pid, uses)), name=f"on-foreign {pid}")
        self._running[pid] = task
        task.add_done_callback(lambda _: self._running.pop(pid))

    def _facts(self, pid: int, uses: Mapping[str, GpuProcess]) -> dict[str, str]:
        user, command = who(pid)
        mem_bytes = [process.mem_bytes for process in uses.values() if process.mem_bytes is not None]
        return {
            "EBB_NODE": self._node,
            "EBB_FOREIGN_PID": str(pid),
            "EBB_FOREIGN_USER": user,
            "EBB_FOREIGN_COMMAND": command,
            "EBB_FOREIGN_GPU": ",".join(sorted(uses)),
            "EBB_FOREIGN_MEM_BYTES": str(sum(mem_bytes)) if mem_bytes else "",
        }

    async def _run(self, pid: int, facts: dict[str, str]) -> None:
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | facts
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            log.error("event=on-foreign-failed pid=%d reason=%r", pid, str(error))
            return
        try:
            async with asyncio.timeout(self._time_s):
                status = await process.wait()
        except TimeoutError:
            log.error("event=on-foreign-failed pid=%d reason='not done after %g s'", pid, self._time_s)
        else:
            level = logging.ERROR if status else logging.INFO
            log.log(level, "event=on-foreign pid=%d user=%s status=%d", pid, facts["EBB_FOREIGN_USER"], status)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
