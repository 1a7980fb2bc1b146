"""Looks into many processes of any user, some of which may never let the reader go.

A process can have its memory on a file system that does not answer, or open a file that hangs. So each user's processes
are looked into on a thread of their own: a user who sets such a trap hides only processes of their own.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from ebbtide_machine.process import Identity

from ebbtide_agent.processes import procfs

T = TypeVar("T")

LONGEST_S: Final = 3.0
"""Seconds in which one process must have been looked into; else the rest of its user's processes is unknown."""
ALL_S: Final = 30.0
"""Seconds in which all must have been looked into, even on a busy machine, or one whose users set traps."""
# Reading a process that sleeps deep in the kernel may hang as the process does, so it gets this long to come out of
# there.
_PATIENCE_S: Final = 1.0
_PAUSE_S: Final = 0.04
_STUCK: Final = 3  # looks that never came back, after which a user's processes are not looked into for now

log = logging.getLogger(__name__)


def look_into(
    processes: Iterable[Identity], look: Callable[[int], T | None], *, asleep_too: bool = False
) -> dict[Identity, T]:
    """Return what `look` returns for each of these processes, unless that is None. Blocks for at most `ALL_S`.

    With `asleep_too` the look does not wait for processes that sleep deep in the kernel, because it needs nothing of
    their memory.
    """
    by_user: dict[int, list[Identity]] = {}
    for process in processes:
        uid = procfs.real_uid(process.pid)
        if uid is not None:
            by_user.setdefault(uid, []).append(process)
    looks = [one for uid, mine in by_user.items() if (one := _begun(uid, mine, look, asleep_too)) is not None]
    deadline = time.monotonic() + ALL_S
    found: dict[Identity, T] = {}
    for one in looks:
        while not one.done.wait(_PAUSE_S):
            if time.monotonic() > min(deadline, one.moved + LONGEST_S):
                break
        found |= one.seen()
    return found


class _Look(Generic[T]):
    """A look at the processes of one user, on a thread of its own."""

    def __init__(self, uid: int, processes: list[Identity], look: Callable[[int], T | None], asleep_too: bool) -> None:
        self.uid = uid
        self._asleep_too = asleep_too
        self.at: Identity | None = None  # the process that the thread looks into now
        self.moved = time.monotonic()  # since this time
        self.done = threading.Event()
        self._processes = processes
        self._look = look
        self._found: dict[Identity, T] = {}
        self._lock = threading.Lock()

    def run(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        waiting = self._processes
        try:
            while waiting:
                asleep = [p for p in waiting if not self._asleep_too and _sleeps_in_kernel(p.pid)]
                for process in waiting:
                    if process not in asleep:
                        self._look_into(process)
                waiting = asleep if time.monotonic() < deadline else []
                time.sleep(_PAUSE_S if waiting else 0.0)
        except (OSError, ValueError):  # what a process shows of itself in /proc may be anything
            log.exception("event=look-failed uid=%d", self.uid)
        finally:  # `look_into` waits for it
            self.at = None
            self.done.set()

    def _look_into(self, process: Identity) -> None:
        self.at, self.moved = process, time.monotonic()
        what = self._look(process.pid)
        if what is not None:
            with self._lock:
                self._found[process] = what

    def seen(self) -> dict[Identity, T]:
        """Return what was seen so far, and log if the look has not finished."""
        at = self.at
        if not self.done.is_set():
            log.warning("event=processes-unknown uid=%d pid=%d", self.uid, at.pid if at is not None else 0)
        with self._lock:
            return dict(self._found)


_running: list["_Look[object]"] = []  # looks that have not come back yet


def _begun(uid: int, processes: list[Identity], look: Callable[[int], T | None], asleep_too: bool) -> "_Look[T] | None":
    """Begin a look at a user's processes, without those that others are stuck in; None if too many looks are stuck."""
    _running[:] = [one for one in _running if not one.done.is_set()]
    stuck = [one for one in _running if one.uid == uid]
    if len(stuck) >= _STUCK:
        return None
    traps = {one.at for one in stuck}
    begun = _Look(uid, [process for process in processes if process not in traps], look, asleep_too)
    _running.append(begun)  # type: ignore[arg-type]
    threading.Thread(target=begun.run, name=f"look at {uid}", daemon=True).start()
    return begun


def _sleeps_in_kernel(pid: int) -> bool:
    stat = procfs.read_stat(pid)
    return stat is not None and stat.in_kernel
