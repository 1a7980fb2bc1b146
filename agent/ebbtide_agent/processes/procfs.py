"""Reads enough of /proc to tell a process from a later one with the same pid; only `proportional_bytes` may block.

/proc/PID/cmdline and environ are not read here, because they take the process's memory lock and hang with a process
whose GPU driver hangs.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from ebbtide_machine.process import DEAD_STATES, stat_fields

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STOPPED_STATES = frozenset("Tt")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One line of /proc/PID/stat; `pid` and `starttime` (jiffies since boot) together name a process of this boot."""

    pid: int
    starttime: int
    parent: int
    command: str
    alive: bool  # False: a zombie, which holds no memory any more
    cpu_s: float
    stopped: bool = False  # by SIGSTOP or a like signal: it computes nothing until SIGCONT
    image: tuple[int, ...] = ()  # addresses of its arguments and environment; empty if they are hidden
    children_cpu_s: float = 0.0  # of children that have ended and that it has waited for, and of theirs
    in_kernel: bool = False  # it sleeps there, not even SIGKILL wakes it, and a reader of its memory waits, too


def read_stat(pid: int) -> ProcessStat | None:
    """Return what /proc says of the process with this pid, or None if there is none."""
    found = stat_fields(pid)
    if found is None:
        return None
    command, fields = found
    return ProcessStat(
        pid=pid,
        starttime=int(fields[19]),
        parent=int(fields[1]),
        command=command,
        alive=fields[0] not in DEAD_STATES,
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        stopped=fields[0] in _STOPPED_STATES,
        children_cpu_s=(int(fields[13]) + int(fields[14])) / _TICKS_PER_S,
        in_kernel=fields[0] == "D",
        image=_image(fields),
    )


def children(pid: int) -> list[int]:
    """Return the pids of the direct children, as far as the kernel tells them."""
    try:
        threads = os.listdir(_PROC / str(pid) / "task")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [child for thread in threads for child in _children_of_thread(pid, thread)]


def returncode(pid: int) -> int | None:
    """Return the exit code of an ended process that is not reaped yet, or minus its signal; None if it is unknown."""
    found = stat_fields(pid)
    return os.waitstatus_to_exitcode(int(found[1][49])) if found is not None and found[1][0] == "Z" else None


def program(pid: int) -> str:
    """Return the name of the file that the process executes; empty if the process is gone or hides it."""
    try:
        return os.path.basename(os.readlink(_PROC / str(pid) / "exe")).removesuffix(" (deleted)")
    except OSError:
        return ""


def memory_bytes(pid: int) -> int:
    """Return the bytes that the process has in memory or swap, without mapped files. Shared pages count whole."""
    return _kilobytes(pid, "status", ("RssAnon:", "RssShmem:", "VmSwap:")) or 0


def proportional_bytes(pid: int) -> int:
    """Return `memory_bytes` with only its part of shared pages. Takes the process's memory lock, and so may hang.

    If the process may not be looked into, shared pages count whole.
    """
    found = _kilobytes(pid, "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:", "SwapPss:"))
    return memory_bytes(pid) if found is None else found


def owner_uid(pid: int) -> int | None:
    """Return the user id that owns the process, or None if the process is gone."""
    try:
        return (_PROC / str(pid)).stat().st_uid
    except (FileNotFoundError, ProcessLookupError):
        return None


def real_uid(pid: int) -> int | None:
    """Return the uid that started the process, even if its program has a set-user-id bit; None if it is gone."""
    try:
        with open(f"{_PROC}/{pid}/status", "rb", buffering=0) as file:
            _, _, uids = file.readall().partition(b"\nUid:")
        return int(uids.split(maxsplit=1)[0]) if uids else None
    except (OSError, ValueError):
        return None


def _kilobytes(pid: int, name: str, keys: tuple[str, ...]) -> int | None:
    """Return the sum of these lines of the file, in bytes; None if it cannot be read."""
    try:
        lines = [line.split() for line in (_PROC / str(pid) / name).read_text(errors="replace").splitlines()]
    except OSError:
        return None
    return sum(int(line[1]) for line in lines if line and line[0] in keys) * 1024


def _image(fields: list[str]) -> tuple[int, ...]:
    """Return addresses that are random at every exec, and that a process keeps that is only forked."""
    image = tuple(map(int, fields[45:49]))
    return image if any(image) else ()


def _children_of_thread(pid: int, thread: str) -> list[int]:
    try:
        # Unbuffered: a program has many threads, and a request to leave waits for this.
        with open(f"{_PROC}/{pid}/task/{thread}/children", "rb", buffering=0) as file:
            line = file.readall()
    except (FileNotFoundError, ProcessLookupError):
        # Only this thread is gone: what the others started still counts.
        return []
    return [int(child) for child in line.split()]
