"""Finds a job's processes that nobody supervises any more, by what only they can have.

Identities are taken before what proves them, so a pid that changes hands in between is signalled by nobody.
"""

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ebbtide_agent import procfs
from ebbtide_agent.attempt_dir import AttemptDir, attempts_dir, doors_dir, lock_path
from ebbtide_agent.identity import Identity
from ebbtide_agent.supervisor.processes import descendants, is_below

# To read the environment of a process that sleeps deep in the kernel may hang as the process does, so it gets this long
# to come out of there. One that never does is recognised by the lock that it holds, or not at all.
_PATIENCE_S = 1.0
_PAUSE_S = 0.04
_SOCKET = b"EBB_SOCKET="
_GPUS = b"CUDA_VISIBLE_DEVICES="


def of_attempt(place: AttemptDir, lock: Path) -> list[Identity]:
    """Processes that were launched for this attempt, or below it, or that inherited its job's lock. Blocks.

    Only for an attempt whose supervisor is dead, and while no other attempt of the job can be starting.
    """
    candidates = _own_processes()
    holders = [process for process in candidates if _holds(process.pid, lock)]
    rest = [process for process in candidates if process not in holders]
    found = holders + [process for process, _ in _launched_below((place.path, place.door), rest)]
    return [*found, *(child for process in found for child in _descendants(process) if child not in found)]


def by_attempt(node_dir: Path) -> dict[str, list[Identity]]:
    """All processes that agents of this node launched on this machine, by the attempt directory's name. Blocks."""
    found: dict[str, list[Identity]] = {}
    for process, path in _launched_below((attempts_dir(node_dir), doors_dir(node_dir)), _own_processes()):
        found.setdefault(path.parent.name, []).append(process)
    return found


def by_any_sign(node_dir: Path) -> dict[str, list[Identity]]:
    """The same, and those that have nothing of their attempt but its job's lock, as its supervisor has. Blocks.

    The lock says whose it is even when it was removed.
    """
    found = by_attempt(node_dir)
    known = {process for processes in found.values() for process in processes}
    for process in _own_processes():
        if process not in known and (name := _locked(node_dir, process.pid)):
            found.setdefault(name, []).append(process)
    return found


def attempts_of(node_dir: Path, pids: frozenset[int]) -> dict[int, str]:
    """The attempt directories' names of those of these processes that agents of this node launched. May block."""
    folders = (attempts_dir(node_dir), doors_dir(node_dir))
    awake = [pid for pid in pids if not _sleeps_in_kernel(pid)]
    found = {pid: path for pid in awake if (path := _job_socket(pid, folders)) is not None}
    return {pid: path.parent.name for pid, path in found.items()}


def gpus_of(processes: Iterable[Identity]) -> list[str]:
    """UUIDs of the GPUs that processes of a job were given, as far as that can be read. May block."""
    values = [_variable(process.pid, _GPUS).decode(errors="replace") for process in processes]
    return sorted({uuid for value in values for uuid in value.split(",") if uuid})


def _descendants(ancestor: Identity) -> list[Identity]:
    """Whatever they may have got rid of, they have their ancestor."""
    below = [process for pid in descendants(ancestor.pid) if (process := Identity.of(pid)) is not None]
    return [process for process in below if is_below(process.pid, ancestor.pid)]


def _launched_below(folders: Sequence[Path], candidates: Iterable[Identity]) -> list[tuple[Identity, Path]]:
    """Those whose job socket is below one of these directories, each with the socket's path."""
    deadline = time.monotonic() + _PATIENCE_S
    found: list[tuple[Identity, Path]] = []
    waiting = list(candidates)
    while waiting:
        undecided = []
        for process in waiting:
            if _sleeps_in_kernel(process.pid):
                undecided.append(process)
            elif (path := _job_socket(process.pid, folders)) is not None:
                found.append((process, path))
        waiting = undecided if time.monotonic() < deadline else []
        time.sleep(_PAUSE_S if waiting else 0.0)
    return found


def _job_socket(pid: int, folders: Sequence[Path]) -> Path | None:
    """The process's EBB_SOCKET, if it is below one of these directories and may be believed.

    Anybody could give his own processes a job's socket: another account's are believed if the socket is theirs.
    """
    path = Path(os.fsdecode(_socket_path(pid)))
    if not any(path.is_relative_to(folder) for folder in folders):
        return None
    uid = procfs.owner_uid(pid)
    return path if uid == os.geteuid() or uid == _owner(path) else None


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def _own_processes() -> list[Identity]:
    uid = os.geteuid()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    mine = [pid for pid in pids if uid in (0, procfs.owner_uid(pid))]
    return [process for pid in mine if (process := Identity.of(pid)) is not None]


def _sleeps_in_kernel(pid: int) -> bool:
    stat = procfs.read_stat(pid)
    return stat is not None and stat.in_kernel


def _socket_path(pid: int) -> bytes:
    return _variable(pid, _SOCKET)


def _variable(pid: int, prefix: bytes) -> bytes:
    """What follows the prefix in the process's environment; empty if nothing has it, or it is not ours to look into."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
    entries = [entry for entry in environment.split(b"\0") if entry.startswith(prefix)]
    return entries[0].removeprefix(prefix) if entries else b""


def _holds(pid: int, lock: Path) -> bool:
    """Whether the process has the lock file open."""
    directory = f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(directory)
    except OSError:
        return False
    return any(_target(f"{directory}/{descriptor}") == str(lock) for descriptor in descriptors)


def _locked(node_dir: Path, pid: int) -> str:
    """The attempt whose lock the process has open; empty if it has none."""
    prefix, directory = f"{lock_path(node_dir, '').parent}/", f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(directory)
    except OSError:
        return ""
    for descriptor in descriptors:
        link = f"{directory}/{descriptor}"
        target = _target(link).removesuffix(" (deleted)")
        if target.startswith(prefix) and target.endswith(".lock"):
            return _holder(link, target.removeprefix(prefix).removesuffix(".lock"))
    return ""


def _holder(link: str, job_id: str) -> str:
    """The attempt that the lock says that it is held by."""
    try:
        with open(link, "rb") as file:
            content = file.readline(32).strip()
    except OSError:
        return ""
    return f"{job_id}.{int(content)}" if content.isdigit() else ""


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
