"""A control group (v2) for each attempt, where the agent's own group may have others below it.

What was started in a group stays there, whatever it forks and whoever its parents are, and one write kills it all, even
what forks faster than anybody can list it. Where there is no group the walk through the process tree has to do, which
is done in any case: as root of one tree a supervisor misses nothing as long as it lives.
"""

import os
import select
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

_NEEDED = ("cgroup.kill", "cgroup.procs")
JOBS_VARIABLE = "EBB_JOBS_CGROUP"
"""Names a group for supervisors and their jobs that is not the agent's own: what is done to its unit spares them."""


@cache
def delegated() -> Path | None:
    """This process's own group if it may have groups below it, as systemd's `Delegate=yes` allows; else None."""
    own = own_group(Path("/proc/self"))
    # Linux 5.14 brought cgroup.kill. The root of all groups has none, and nobody owns it.
    usable = own is not None and all(os.access(own / name, os.W_OK) for name in _NEEDED) and os.access(own, os.W_OK)
    return own if usable else None


def jobs_group() -> Path | None:
    """The group that `JOBS_VARIABLE` names, if this process may move there; else None."""
    named = Path(os.environ.get(JOBS_VARIABLE) or "/dev/null")
    may_move = os.access(named / "cgroup.procs", os.W_OK) and os.access(named.parent / "cgroup.procs", os.W_OK)
    return named if may_move else None


def own_group(proc: Path) -> Path | None:
    """Where the v2 group of the process with this directory in /proc is mounted, in hybrid hierarchies, too."""
    try:
        groups, mountinfo = ((proc / name).read_text().splitlines() for name in ("cgroup", "mountinfo"))
    except OSError:
        return None  # a kernel without control groups
    path = next((line.removeprefix("0::") for line in groups if line.startswith("0::")), None)
    mounts = [line.split() for line in mountinfo if " - cgroup2 " in line]
    if path is None or not mounts:
        return None
    root, mount_point = mounts[0][3:5]
    below = os.path.relpath(path, root)
    return None if below.startswith("..") else Path(mount_point, below)


def group_name(node_dir: str, attempt: str) -> str:
    """Of the group of the attempt whose directory has this name; those of other nodes on the machine differ."""
    return f"ebb-{zlib.crc32(os.fsencode(node_dir)):08x}-{attempt}"


@dataclass(frozen=True, slots=True)
class Group:
    """One attempt's group."""

    path: Path

    @classmethod
    def create(cls, parent: Path, name: str) -> Self | None:
        """A group below this one; None if the system does not let us."""
        group = cls(parent / name)
        try:
            group.path.mkdir(exist_ok=True)
        except OSError:
            return None
        return group

    def enter(self) -> None:
        """Move this process, which has one thread, into the group; where that fails it stays where it is."""
        with suppress(OSError):
            (self.path / "cgroup.procs").write_text("0")

    def take(self, pid: int) -> None:
        """Move a child of this process, which has not been reaped, into the group; or it stays where it is."""
        with suppress(OSError):
            (self.path / "cgroup.procs").write_text(str(pid))

    def kill(self) -> None:
        """Send SIGKILL to every process in the group, and to those that are just being forked."""
        with suppress(FileNotFoundError):
            (self.path / "cgroup.kill").write_text("1")

    def is_empty_within(self, seconds: float) -> bool:
        """Whether no process lives in the group or below it, now or before so many seconds have passed."""
        try:
            with (self.path / "cgroup.events").open() as events:
                changes = select.poll()
                changes.register(events, select.POLLPRI)
                while "populated 1" in events.read():
                    if not changes.poll(seconds * 1000):
                        return False
                    events.seek(0)
        except FileNotFoundError:
            pass  # somebody has removed it, which only an empty one allows
        return True

    def remove(self) -> None:
        """Remove it, and what the job made below it. One that cannot be removed does no harm."""
        for directory, _, _ in os.walk(self.path, topdown=False):
            with suppress(OSError):
                os.rmdir(directory)
