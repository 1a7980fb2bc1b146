"""Proves which process a record on disk means, because the kernel reuses pids.

Masters, agents and supervisors record their identity in files; agents and `ebb` read these files, and signal no process
whose identity they have not proven. /proc/PID/cmdline and environ are not read: they take the process's memory lock,
and hang with a process whose GPU driver hangs.
"""

import os
import select
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

DEAD_STATES: Final = frozenset("ZX")
"""States that count as ended; a zombie holds no memory any more."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One process of one boot of this machine."""

    boot_id: str
    pid: int
    starttime: int  # jiffies since boot

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the identity of the process that has this pid now, or None if it has ended; a zombie has ended."""
        stat = stat_fields(pid)
        if stat is None or stat[1][0] in DEAD_STATES:
            return None
        return cls(boot_id(), pid, int(stat[1][19]))

    @classmethod
    def own(cls) -> Self:
        """Return the identity of this process."""
        identity = cls.of(os.getpid())
        assert identity is not None
        return identity

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read an identity. Raises KeyError, TypeError or ValueError if the content is none."""
        return cls(str(content["boot_id"]), int(content["pid"]), int(content["starttime"]))

    @classmethod
    def nobody(cls) -> Self:
        """Return the identity that is recorded where there is no process; it is never alive."""
        return cls(boot_id(), 0, 0)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def is_alive(self) -> bool:
        """Whether this very process has not ended."""
        return Identity.of(self.pid) == self

    def signal(self, signum: int) -> bool:
        """Send the signal to this process and no other; return False if it has ended or may not be signalled."""
        with self.opened() as descriptor:
            if descriptor is None:
                return False
            try:
                signal.pidfd_send_signal(descriptor, signum)
            except (ProcessLookupError, PermissionError):
                return False
            return True

    def ended_within(self, seconds: float) -> bool:
        """Wait until the process has ended, for at most ``seconds``, and return whether it has."""
        with self.opened() as descriptor:
            if descriptor is None:
                return True
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(seconds * 1000))

    @contextmanager
    def opened(self) -> Iterator[int | None]:
        """Give a descriptor of this process for as long as the block lasts, or None if it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            # The descriptor pins the process that has the pid now, so only a check after opening it is a proof.
            yield descriptor if self.is_alive() else None
        finally:
            os.close(descriptor)


@cache
def boot_id() -> str:
    """Return the identity of this boot of the kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def stat_fields(pid: int) -> tuple[str, list[str]] | None:
    """Return the command in /proc/PID/stat and the fields behind it, from the state on; None if there is no process."""
    try:
        # Unbuffered, and no Path: an agent reads this of every process of its jobs all the time.
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            line = file.readall().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command may hold blanks and parentheses itself, so the fields are counted from its last one.
    head, _, tail = line.rpartition(")")
    return head.partition("(")[2], tail.split()
