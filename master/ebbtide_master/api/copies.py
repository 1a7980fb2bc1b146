"""Computes long results from the present cluster in a copy of this process, while the master goes on.

A copy is made by ``fork``. It has only the master's memory: no files, connections or threads. It computes, returns the
result and ends; it also ends with the master, and at the end of its time.
"""

import asyncio
import ctypes
import gc
import os
import resource
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from ebbtide_master.throttle.concurrency import OnePerUser

AT_ONCE: Final = 2
"""Copies that exist at a time, for all users."""
LONGEST_S: Final = 30.0
"""Longest time in seconds that a copy may take."""
_WINDOW: Final = 64 * 1024
_NICE: Final = 10
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


class ForkedCopies:
    """Makes copies; ``turn`` lets the users have them in turn."""

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self._longest_s = longest_s
        self.turn = OnePerUser(AT_ONCE).turn

    def compute(self, work: Callable[[], bytes]) -> asyncio.Future[bytes | None]:
        """Return the future result of ``work`` in a copy made now; the result is None if it takes too long or fails."""
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            # Locks of other threads stay locked in the copy for ever: it takes none of them, and has a deadline.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _compute(work, writer, self._longest_s)
        os.close(writer)
        return _Reading(pid, reader, self._longest_s).done


class _Reading:
    """Reads the result of a copy until it is complete or its time is over, and then ends the copy."""

    def __init__(self, pid: int, reader: int, longest_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid = pid
        self._reader = reader
        self._said = b""
        self.done: asyncio.Future[bytes | None] = self._loop.create_future()
        os.set_blocking(reader, False)
        self._late = self._loop.call_later(longest_s, self._end, None)
        self._loop.add_reader(reader, self._read)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            if window := os.read(self._reader, _WINDOW):
                self._said += window
            else:
                self._end(self._said or None)

    def _end(self, said: bytes | None) -> None:
        self._late.cancel()
        self._loop.remove_reader(self._reader)
        os.close(self._reader)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._loop.run_in_executor(None, os.waitpid, self._pid, 0)
        if not self.done.done():
            self.done.set_result(said)


def _compute(work: Callable[[], bytes], writer: int, longest_s: float) -> NoReturn:
    """Drop all that a copy must not have of the master, do ``work``, write the result, and exit."""
    try:
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_DFL)
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        os.closerange(3, writer)
        os.closerange(writer + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_CPU, (int(longest_s) + 1, int(longest_s) + 1))
        os.nice(_NICE)
        gc.disable()
        said = work()
        while said:
            said = said[os.write(writer, said) :]
    except BaseException:  # noqa: BLE001 (for any error, the master gets no result)
        os._exit(1)
    os._exit(0)
