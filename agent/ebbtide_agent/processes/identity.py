"""Who a process is: a pid alone may by now name somebody else's process, and must never be signalled."""

import os
import signal
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Self

from ebbtide_agent.processes import procfs

boot_id = cache(procfs.boot_id)


@dataclass(frozen=True, slots=True)
class Identity:
    """One process of one boot of this machine."""

    boot_id: str
    pid: int
    starttime: int  # jiffies since boot

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that has this pid now; None if it has ended (a zombie has)."""
        stat = procfs.read_stat(pid)
        return cls(boot_id(), pid, stat.starttime) if stat is not None and stat.alive else None

    @classmethod
    def own(cls) -> Self:
        """This process."""
        identity = cls.of(os.getpid())
        assert identity is not None
        return identity

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError if the content is not an identity."""
        return cls(str(content["boot_id"]), int(content["pid"]), int(content["starttime"]))

    @classmethod
    def nobody(cls) -> Self:
        """Who stands where a process would, but none is: it is never alive."""
        return cls(boot_id(), 0, 0)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def is_alive(self) -> bool:
        """Whether this very process has not ended."""
        return Identity.of(self.pid) == self

    def signal(self, signum: int) -> bool:
        """Send the signal to this process and to no other; False if it has ended or may not be signalled."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # The descriptor pins whatever has the pid now, so only a check that comes after opening it proves anything.
            if not self.is_alive():
                return False
            signal.pidfd_send_signal(descriptor, signum)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(descriptor)
        return True
