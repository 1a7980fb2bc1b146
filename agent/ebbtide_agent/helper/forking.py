"""Processes forked to touch users' files, by one with a single thread: they are no part of what it supervises."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

_MOMENT_S = 0.05
_pids: set[int] = set()


def on_their_way() -> frozenset[int]:
    """Those of this process that it has not buried."""
    return frozenset(_pids)


def buried(pid: int) -> bool:
    """To be told of a process that was reaped; whether it was one of these."""
    known = pid in _pids
    _pids.discard(pid)
    return known


class Forked:
    """One such process. Whoever reaps children may reap it like any other."""

    def __init__(self, run: Callable[[int], None]) -> None:
        """It runs with the pid of its parent as argument, and ends then. Raises OSError."""
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                run(parent)
            finally:
                os._exit(0)
        _pids.add(self.pid)
        self._descriptor = os.pidfd_open(self.pid)  # nobody has reaped it yet, so it is this very process

    def signal(self, signum: int) -> None:
        """Raises ProcessLookupError if it has ended and was reaped."""
        signal.pidfd_send_signal(self._descriptor, signum)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)

    def close(self) -> None:
        """It is not to be signalled any more."""
        os.close(self._descriptor)

    def bury(self) -> None:
        """Reap it, if it is gone in a moment."""
        with suppress(ChildProcessError):
            until = time.monotonic() + _MOMENT_S
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                if time.monotonic() >= until:
                    return
                time.sleep(_MOMENT_S / 100)
        _pids.discard(self.pid)
