"""Looks at the GPUs once: which processes are on them, and which users the processes belong to."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ebbtide_agent.gpu.backend import GpuBackend, GpuProcess, GpuReading
from ebbtide_agent.processes import process_owner, procfs

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FIRST_PID = 1  # the ancestor of all processes, so it does not show which belong together
_LONGEST_COMMAND = 200

Key = tuple[int, int]
"""Pid and start time (jiffies since boot; 0: this machine does not show the process)."""


@dataclass(frozen=True, slots=True)
class ObservedProcess:
    """A process that is on at least one GPU."""

    key: Key
    gpus: dict[str, int | None]  # GPU memory in bytes by UUID; None: not available
    ancestors: tuple[Key, ...] = ()  # the parent first; without the machine's first process
    user: str = ""
    command: str = ""

    @property
    def shown(self) -> bool:
        """Whether this machine shows the process; it does not show one in another pid namespace."""
        return self.key[1] != 0

    @property
    def started_s(self) -> float:
        """The start of the process, in seconds since boot."""
        return self.key[1] / _TICKS_PER_S


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """The processes and readings of all GPUs at one moment."""

    at: float  # Unix seconds
    processes: tuple[ObservedProcess, ...]
    utilisation: dict[str, float | None]  # 0 to 1, by UUID of the GPU; None: not available
    blind: frozenset[str] = frozenset()  # GPUs whose processes could not be read


def look(backend: GpuBackend, at: float, whole_commands: bool = False) -> NodeObservation:
    """Look at every GPU now; `at` is the present time. A process that ends meanwhile may be missing."""
    readings = [backend.read(gpu.uuid) for gpu in backend.gpus()]
    held = _by_process(readings)
    return NodeObservation(
        at=at,
        processes=tuple(_seen(pid, gpus, whole_commands) for pid, gpus in sorted(held.items())),
        utilisation={reading.uuid: reading.utilisation for reading in readings},
        blind=frozenset(reading.uuid for reading in readings if reading.processes is None),
    )


def _by_process(readings: list[GpuReading]) -> dict[int, dict[str, int | None]]:
    held: dict[int, dict[str, int | None]] = {}
    for reading in readings:
        for process in reading.processes or ():
            held.setdefault(process.pid, {})[reading.uuid] = _bytes(process)
    return held


def _bytes(process: GpuProcess) -> int | None:
    return process.mem_bytes


def _seen(pid: int, gpus: dict[str, int | None], whole_commands: bool) -> ObservedProcess:
    stat = procfs.read_stat(pid)
    if stat is None:
        return ObservedProcess((pid, 0), gpus)
    command = (_command_line(pid) if whole_commands else "") or stat.command
    return ObservedProcess(
        (pid, stat.starttime), gpus, tuple(_ancestors(stat.parent)), process_owner.owner_name(pid), command
    )


def _ancestors(pid: int) -> Iterator[Key]:
    while pid > _FIRST_PID and (stat := procfs.read_stat(pid)) is not None:
        yield (pid, stat.starttime)
        pid = stat.parent


def _command_line(pid: int) -> str:
    # Unlike the name, reading this may hang with a process whose driver hangs, so it is read only on request.
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return ""
    return " ".join(words).strip()[:_LONGEST_COMMAND]
