"""Gives each attempt a control group (v2), if the agent's own group may have others below it.

A process that was started in a group stays there, whatever it forks and whichever its parents are, and one write kills
the whole group, even processes that fork faster than they can be listed. Without a group the walk through the process
tree has to do, which is done in any case: as root of one tree a supervisor misses nothing as long as it lives.

The kernel limits the CPUs and the memory of such groups only if no process is in the group above them. So agents and
supervisors move to a group beside those of the attempts.
"""

import os
import select
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self

from ebbtide_agent.processes.process_tree import descendants

_NEEDED = ("cgroup.kill", "cgroup.procs")
JOBS_VARIABLE = "EBB_JOBS_CGROUP"
"""Names a group for supervisors and jobs outside the agent's own, so that what is done to its unit spares them."""
SUPERVISORS: Final = "ebb-supervisors"
"""Name of the group of agent and supervisors, beside the groups of the attempts."""
CPU: Final = "cpu"
MEMORY: Final = "memory"
_DELEGATED_BY_SYSTEMD: Final = ("user.delegate", "trusted.delegate")
_PERIOD_US: Final = 100_000
_LEAST_QUOTA_US: Final = 1_000  # the least that the kernel takes
_WEIGHT_OF_A_CPU: Final = 100  # the weight of a group that has not been given another one
_MOST_WEIGHT: Final = 10_000


def parent_of_attempts() -> Path | None:
    """Return the group below which each attempt gets its own; None if no attempt gets one."""
    return jobs_group() or delegated()


def limited() -> frozenset[str]:
    """Return what the kernel limits for the groups of attempts: some of `CPU` and `MEMORY`."""
    parent = parent_of_attempts()
    return frozenset() if parent is None else _words(parent / "cgroup.subtree_control") & {CPU, MEMORY}


def divide(agent: int) -> None:
    """Move this process, and others in the way, to a group beside those of the attempts, so that these can be limited.

    `agent` is the pid of the agent that this process belongs to. If they cannot be moved, the groups have no limits.
    """
    jobs = jobs_group()
    if jobs is not None:
        (ControlGroup.create(jobs, SUPERVISORS) or ControlGroup(jobs)).enter()
    parent = delegated()
    if parent is None or (jobs is None and _is_refilled(parent)):
        return
    in_the_way = {int(pid) for pid in _words(parent / "cgroup.procs")}
    is_ours = jobs is not None or any(_has_attribute(parent, name) for name in _DELEGATED_BY_SYSTEMD)
    if not is_ours and in_the_way - {agent, *descendants(agent)}:
        return  # a process that is not the agent's is there
    beside = ControlGroup.create(parent, SUPERVISORS)
    if beside is None:
        return
    for pid in in_the_way:
        beside.take(pid)
    for controller in (CPU, MEMORY):
        with suppress(OSError):  # this controller is not available here
            (parent / "cgroup.subtree_control").write_text(f"+{controller}")
    with suppress(OSError):
        (beside.path / "cpu.weight").write_text(str(_MOST_WEIGHT))  # supervisors need little, but at once


def _is_refilled(group: Path) -> bool:
    """Return whether systemd restarts its service in this very group, which fails once groups below it have limits.

    It does not if it was told to start the service beside them (`DelegateSubgroup=`).
    """
    own = own_group(Path("/proc/self"))
    return group.name.endswith(".service") and (own is None or own.name != SUPERVISORS)


def _has_attribute(path: Path, name: str) -> bool:
    try:
        return os.getxattr(path, name) == b"1"
    except OSError:
        return False


def _words(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text().split())
    except OSError:
        return frozenset()


@cache
def delegated() -> Path | None:
    """Return this process's own group if it may have groups below it, as systemd's `Delegate=yes` allows; else None.

    For a process in the group `SUPERVISORS` that is the group above.
    """
    own = own_group(Path("/proc/self"))
    if own is not None and own.name == SUPERVISORS:
        own = own.parent
    # Linux 5.14 brought cgroup.kill. The root of all groups has none, and cannot be delegated.
    usable = own is not None and all(os.access(own / name, os.W_OK) for name in _NEEDED) and os.access(own, os.W_OK)
    return own if usable else None


def jobs_group() -> Path | None:
    """Return the group that `JOBS_VARIABLE` names, if this process may move there; else None."""
    named = Path(os.environ.get(JOBS_VARIABLE) or "/dev/null")
    may_move = os.access(named / "cgroup.procs", os.W_OK) and os.access(named.parent / "cgroup.procs", os.W_OK)
    return named if may_move else None


def own_group(proc: Path) -> Path | None:
    """Return the directory of the v2 group of the process with this /proc directory, in hybrid hierarchies too."""
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
    """Return the group's name for the attempt directory `attempt`; it differs for another node on this machine."""
    return f"ebb-{zlib.crc32(os.fsencode(node_dir)):08x}-{attempt}"


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The control group of one attempt."""

    path: Path

    @classmethod
    def create(cls, parent: Path, name: str) -> Self | None:
        """Create a group below `parent`, and return it; None if the system does not permit that."""
        group = cls(parent / name)
        try:
            group.path.mkdir(exist_ok=True)
        except OSError:
            return None
        return group

    def enter(self) -> None:
        """Move this process, which has one thread, into the group; if that fails, it stays where it is."""
        with suppress(OSError):
            (self.path / "cgroup.procs").write_text("0")

    def take(self, pid: int) -> None:
        """Move a process, also a child that is not reaped yet, into the group; if that fails, it stays where it is."""
        with suppress(OSError):
            (self.path / "cgroup.procs").write_text(str(pid))

    def limit_cpus(self, cpus: float) -> bool:
        """Limit the group to `cpus` CPUs, and weight it by them if others compete; return False if that fails."""
        quota_us = max(_LEAST_QUOTA_US, round(cpus * _PERIOD_US))
        weight = max(1, min(_MOST_WEIGHT, round(cpus * _WEIGHT_OF_A_CPU)))
        return self._set("cpu.max", f"{quota_us} {_PERIOD_US}") and self._set("cpu.weight", str(weight))

    def limit_memory(self, mem_bytes: int) -> bool:
        """Have the kernel kill the whole group together if it uses more; return False if that cannot be set."""
        self._set("memory.swap.max", "0")  # this file does not exist if the kernel cannot swap
        return self._set("memory.oom.group", "1") and self._set("memory.max", str(mem_bytes))

    def memory_kills(self) -> tuple[int, bool, bool]:
        """Return how many processes the kernel killed for lack of memory, and which limit was reached.

        The second value says whether it was the group's own limit, the third whether it was that of a group below.
        """
        of_all, own = self._counts("memory.events"), self._counts("memory.events.local")
        was_reached = bool(own.get("oom"))
        return of_all.get("oom_kill", 0), was_reached, not was_reached and bool(of_all.get("oom"))

    def pids(self) -> list[int]:
        """Return the pids of all processes in the group and below it."""
        folders = [folder for folder, _, _ in os.walk(self.path)]
        return [int(pid) for folder in folders for pid in _words(Path(folder, "cgroup.procs"))]

    def _set(self, name: str, value: str) -> bool:
        try:
            (self.path / name).write_text(value)
        except OSError:
            return False
        return True

    def _counts(self, name: str) -> dict[str, int]:
        try:
            lines = (self.path / name).read_text().splitlines()
        except OSError:
            return {}
        return {key: int(count) for key, count in (line.split() for line in lines)}

    def kill(self) -> None:
        """Send SIGKILL to every process in the group, also to those that are just being forked."""
        with suppress(FileNotFoundError):
            (self.path / "cgroup.kill").write_text("1")

    def is_empty_within(self, seconds: float) -> bool:
        """Return whether no process lives in the group or below it, now or before so many seconds have passed."""
        try:
            with (self.path / "cgroup.events").open() as events:
                changes = select.poll()
                changes.register(events, select.POLLPRI)
                while "populated 1" in events.read():
                    if not changes.poll(seconds * 1000):
                        return False
                    events.seek(0)
        except FileNotFoundError:
            pass  # the group was removed, which is possible only if it is empty
        return True

    def remove(self) -> None:
        """Remove the group and those that the job made below it. A group that cannot be removed does no harm."""
        for directory, _, _ in os.walk(self.path, topdown=False):
            with suppress(OSError):
                os.rmdir(directory)
