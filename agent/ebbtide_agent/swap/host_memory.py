"""Reserves room in host memory for what is swapped out, so that no two swaps count on the same room.

The driver copies GPU memory into memory of the process itself, so the copy counts against the machine and against every
cgroup that the process is in. What is already copied shows in both, and what is about to be copied is recorded here.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbtide_machine.process import Identity

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")
# Left to the rest of the machine.
SPARE_BYTES = 512 * 1024 * 1024


class NoHostMemory(Exception):
    """The host has too little memory for a swap; the message says how much there is."""


@contextmanager
def reserved(directory: Path, mem_bytes: int, room_bytes: int | None) -> Iterator[None]:
    """Reserve `mem_bytes` of the room for the block, which copies them. Raises NoHostMemory and OSError.

    `room_bytes` is what the host has left, or None for no limit. A reservation ends with the process that made it,
    however that ends.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = directory / f"{os.getpid()}.json"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        promised = sum(_promises(directory))
        if room_bytes is not None and mem_bytes + promised + SPARE_BYTES > room_bytes:
            raise NoHostMemory(
                f"host memory: {mem_bytes} bytes are needed, {room_bytes} available, {promised} of these promised "
                f"to other swaps and {SPARE_BYTES} kept spare"
            )
        own.write_text(json.dumps({"holder": Identity.own().to_json(), "mem_bytes": mem_bytes}))
    try:
        yield
    finally:
        own.unlink(missing_ok=True)


def room_bytes(pid: int) -> int:
    """Return how many bytes the machine and every cgroup of the process still have. Raises OSError."""
    limits = [_available_bytes(), *_cgroup_rooms(pid)]
    return min(limits)


def _promises(directory: Path) -> Iterator[int]:
    for path in directory.glob("*.json"):
        try:
            content = json.loads(path.read_text())
            alive = Identity.from_json(content["holder"]).is_alive()
            promised = int(content["mem_bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            alive, promised = False, 0
        if alive:
            yield promised
        else:
            path.unlink(missing_ok=True)


def _available_bytes() -> int:
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def _cgroup_rooms(pid: int) -> Iterator[int]:
    """Yield the room below memory.max, in bytes, of every cgroup (v2) from the process's own upwards."""
    own = _own_cgroup(pid)
    if own is None:
        return
    directory = _CGROUPS / own
    for group in (directory, *directory.parents):
        if not group.is_relative_to(_CGROUPS):
            return
        most, used = _number(group / "memory.max"), _number(group / "memory.current")
        if most is not None and used is not None:
            yield most - used + _file_bytes(group)


def _own_cgroup(pid: int) -> str | None:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)


def _file_bytes(group: Path) -> int:
    """Return the bytes of file pages, which the kernel gives back first: reading much data fills a limit with them."""
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("active_file ", "inactive_file ")))


def _number(path: Path) -> int | None:
    """Return the file's number; None if it says `max` or does not exist."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
