"""Which process a record on disk means: never a bare pid, which the kernel gives to somebody else in time."""

import os
import select
import signal
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

DEAD_STATES = ("Z", "X")


@dataclass(frozen=True, slots=True)
class Process:
    """One process in the life of this machine: ``starttime`` in jiffies since the boot named by ``boot_id``."""

    pid: int
    starttime: int
    boot_id: str

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self | None:
        """Read the identity that a daemon wrote about itself; None if it is not there."""
        try:
            return cls(int(record["pid"]), int(record["starttime"]), str(record["boot_id"]))
        except (KeyError, TypeError, ValueError):
            return None

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return self.boot_id == _boot_id() and self.starttime == _running_since(self.pid)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this very process; False if it is gone."""
        with self.opened() as descriptor:
            if descriptor is None:
                return False
            try:
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                return False
            return True

    def ended_within(self, seconds: float) -> bool:
        """Wait until the process has ended, for at most ``seconds``; whether it has."""
        with self.opened() as descriptor:
            if descriptor is None:
                return True
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(seconds * 1000))

    @contextmanager
    def opened(self) -> Iterator[int | None]:
        """Open the process and check it afterwards, so that no signal can reach a later owner of the pid."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            yield descriptor if self.alive() else None
        finally:
            os.close(descriptor)


def first_to_end(processes: Iterable[Process], stop: int) -> Process | None:
    """Wait until one of several processes has ended and return it; None once ``stop`` can be read."""
    poll, opened = select.poll(), {}
    poll.register(stop, select.POLLIN)
    with ExitStack() as stack:
        for process in processes:
            descriptor = stack.enter_context(process.opened())
            if descriptor is None:
                return process
            poll.register(descriptor, select.POLLIN)
            opened[descriptor] = process
        return opened.get(poll.poll()[0][0])


@contextmanager
def stop_signals() -> Iterator[int]:
    """Turn SIGINT and SIGTERM into a descriptor that can be read.

    An exception out of a signal handler can be lost in a destructor; a byte in a socket cannot.
    """
    told, tell = socket.socketpair()
    tell.setblocking(False)
    with told, tell:
        before = signal.set_wakeup_fd(tell.fileno())
        handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield told.fileno()
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _running_since(pid: int) -> int | None:
    """Start time of a process in jiffies; None if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    state, starttime = fields[0], fields[19]
    return None if state in DEAD_STATES else int(starttime)
