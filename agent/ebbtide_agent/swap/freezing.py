"""Stops and continues all of a job's processes, whatever became of their groups and parents."""

import os
import signal
import time

from ebbtide_agent.processes import process_tree, procfs

_PAUSE_S = 0.002
# A process deep in a driver or in the file system stops when it comes out of there, before it computes again.
_PATIENCE_S = 2.0


def freeze(root: int) -> None:
    """Stop every process below `root` except this one, also those that are being forked meanwhile."""
    deadline = time.monotonic() + _PATIENCE_S
    while (moving := [pid for pid in _job(root) if _moves(pid)]) and time.monotonic() < deadline:
        process_tree.signal_below(root, moving, signal.SIGSTOP)
        time.sleep(_PAUSE_S)


def thaw(root: int) -> None:
    """Continue every process below `root` except this one."""
    process_tree.signal_below(root, _job(root), signal.SIGCONT)


def _job(root: int) -> list[int]:
    return [pid for pid in process_tree.descendants(root) if pid != os.getpid()]


def _moves(pid: int) -> bool:
    stat = procfs.read_stat(pid)
    return stat is not None and stat.alive and not stat.stopped
