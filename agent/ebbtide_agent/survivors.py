"""Finds a job's processes that nobody supervises any more, by what only they can have.

Identities are taken before what proves them, so a pid that changes hands in between is signalled by nobody.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path

from ebbtide_agent import procfs
from ebbtide_agent.attempt_dir import attempts_dir
from ebbtide_agent.identity import Identity
from ebbtide_agent.supervisor.processes import descendants, is_below

# To read the environment of a process that sleeps deep in the kernel may hang as the process does, so it gets this long
# to come out of there. One that never does is recognised by the lock that it holds, or not at all.
_PATIENCE_S = 1.0
_PAUSE_S = 0.04
_SOCKET = b"EBB_SOCKET="


def of_attempt(attempt_dir: Path, lock: Path) -> list[Identity]:
    """Processes that were launched for this attempt, or below it, or that inherited its job's lock. Blocks.

    Only for an attempt whose supervisor is dead, and while no other attempt of the job can be starting.
    """
    candidates = _own_processes()
    holders = [process for process in candidates if _holds(process.pid, lock)]
    rest = [process for process in candidates if process not in holders]
    found = holders + [process for process, _ in _launched_below(attempt_dir, rest)]
    return [*found, *(child for process in found for child in _descendants(process) if child not in found)]


def by_attempt(node_dir: Path) -> dict[str, list[Identity]]:
    """All processes that agents of this node launched on this machine, by the attempt directory's name. Blocks."""
    found: dict[str, list[Identity]] = {}
    for process, name in _launched_below(attempts_dir(node_dir), _own_processes()):
        found.setdefault(name, []).append(process)
    return found


def attempts_of(node_dir: Path, pids: frozenset[int]) -> dict[int, str]:
    """The attempt directories' names of those of these processes that agents of this node launched. May block."""
    prefix = os.fsencode(attempts_dir(node_dir)) + b"/"
    # Of another user's processes nothing is believed: anybody could give his own a job's socket.
    mine = [pid for pid in pids if procfs.owner_uid(pid) == os.geteuid() and not _sleeps_in_kernel(pid)]
    paths = {pid: path for pid in mine if (path := _socket_path(pid)).startswith(prefix)}
    return {pid: _name_below(prefix, path) for pid, path in paths.items()}


def _descendants(ancestor: Identity) -> list[Identity]:
    """Whatever they may have got rid of, they have their ancestor."""
    below = [process for pid in descendants(ancestor.pid) if (process := Identity.of(pid)) is not None]
    return [process for process in below if is_below(process.pid, ancestor.pid)]


def _launched_below(directory: Path, candidates: Iterable[Identity]) -> list[tuple[Identity, str]]:
    """Those whose job socket is below this directory, each with the next part of the socket's path."""
    prefix = os.fsencode(directory) + b"/"
    deadline = time.monotonic() + _PATIENCE_S
    found: list[tuple[Identity, str]] = []
    waiting = list(candidates)
    while waiting:
        undecided = []
        for process in waiting:
            if _sleeps_in_kernel(process.pid):
                undecided.append(process)
            elif (path := _socket_path(process.pid)).startswith(prefix):
                found.append((process, _name_below(prefix, path)))
        waiting = undecided if time.monotonic() < deadline else []
        time.sleep(_PAUSE_S if waiting else 0.0)
    return found


def _name_below(prefix: bytes, path: bytes) -> str:
    return os.fsdecode(path.removeprefix(prefix).partition(b"/")[0])


def _own_processes() -> list[Identity]:
    uid = os.geteuid()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    mine = [pid for pid in pids if uid in (0, procfs.owner_uid(pid))]
    return [process for pid in mine if (process := Identity.of(pid)) is not None]


def _sleeps_in_kernel(pid: int) -> bool:
    stat = procfs.read_stat(pid)
    return stat is not None and stat.in_kernel


def _socket_path(pid: int) -> bytes:
    """The process's EBB_SOCKET; empty if it has none, is gone, or is not ours to look into."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
    entries = [entry for entry in environment.split(b"\0") if entry.startswith(_SOCKET)]
    return entries[0].removeprefix(_SOCKET) if entries else b""


def _holds(pid: int, lock: Path) -> bool:
    """Whether the process has the lock file open."""
    directory = f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(directory)
    except OSError:
        return False
    return any(_target(f"{directory}/{descriptor}") == str(lock) for descriptor in descriptors)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
