"""Forks processes that touch users' files, for a process with one thread; they are no part of what it supervises."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

_MOMENT_S = 0.05
_pids: set[int] = set()


def unreaped() -> frozenset[int]:
    """Return the pids of such processes that this process has forked and not reaped."""
    return frozenset(_pids)


def note_reaped(pid: int) -> bool:
    """Note that a process was reaped, and return whether it was one of these."""
    known = pid in _pids
    _pids.discard(pid)
    return known


class ForkedProcess:
    """One such process. Code that reaps children may reap it like any other."""

    def __init__(self, run: Callable[[int], None]) -> None:
        """Fork a process that calls `run` with the pid of its parent, and then ends. Raises OSError."""
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                run(parent)
            finally:
                os._exit(0)
        _pids.add(self.pid)
        self._descriptor = os.pidfd_open(self.pid)  # it is not reaped yet, so no other process has its pid

    def signal(self, signum: int) -> None:
        """Send a signal to the process. Raises ProcessLookupError if it has ended and was reaped."""
        signal.pidfd_send_signal(self._descriptor, signum)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptor; the process cannot be signalled any more."""
        os.close(self._descriptor)

    def reap(self) -> None:
        """Reap the process if it ends in a moment."""
        with suppress(ChildProcessError):
            until = time.monotonic() + _MOMENT_S
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                if time.monotonic() >= until:
                    return
                time.sleep(_MOMENT_S / 100)
        _pids.discard(self.pid)
