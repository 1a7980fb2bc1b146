"""Append a job's output to the file that its user asked for, beside the log that the node keeps.

A process with the user's rights opens that file and writes to it, so that a file system that hangs holds up no other
process.
"""

import fcntl
import math
import os
import select
import time
from contextlib import suppress
from pathlib import Path

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.helper.task import HelperTask
from ebbtide_agent.logs.log_file import read_window
from ebbtide_agent.supervisor.status import Refused, WireRefusalCause

_WINDOW_BYTES = 1024 * 1024
# Windows that are copied at one look; then other work has its turn.
_WINDOWS = 8
# Seconds between tries to write when the disk has no room, or no process reads from a pipe.
_AGAIN_S = 0.1


class OutputFile:
    """Appends what one attempt prints to one file, from the attempt's beginning to its end."""

    def __init__(self, log: Path, path: Path, header: str = "", account: Account | None = None) -> None:
        """Start the process that writes with the account's rights. Raises OSError if it cannot be started."""
        self.patience_s = 5.0  # how long writing may stall at the end; the node's log has the output in any case
        self._log = log
        self._offset = 0
        self._rest = memoryview(header.encode())
        readable, self._pipe = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)
        with suppress(OSError):  # then the pipe takes fewer bytes at a time
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _WINDOW_BYTES)
        try:
            self._helper_task = HelperTask(
                _append, str(path), account=account, within_s=math.inf, descriptors=[readable]
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(readable)

    def look(self, *, final: bool = False) -> bool:
        """Append what was printed since, and return whether there was anything. What the disk has no room for waits."""
        if final:
            self._helper_task.wake()
        grown, windows = False, 0
        while self._write(self.patience_s if final else 0.0) and self._read():
            grown, windows = True, windows + 1
            if windows == _WINDOWS and not final:
                break
        return grown

    def close(self) -> None:
        """Close the pipe, and give the writing process `patience_s` seconds to finish."""
        os.close(self._pipe)
        self._helper_task.wake()
        self._helper_task.deadline = time.monotonic() + self.patience_s
        with suppress(OSError):
            self._helper_task.wait()

    def _write(self, patience_s: float) -> bool:
        while self._rest:
            try:
                self._rest = self._rest[os.write(self._pipe, self._rest) :]
            except BlockingIOError:
                room = select.poll()
                room.register(self._pipe, select.POLLOUT)
                if not room.poll(1000 * patience_s):
                    return False
            except OSError:  # the writing process is gone
                return False
        return True

    def _read(self) -> bool:
        try:
            descriptor = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            window = read_window(descriptor, self._offset, _WINDOW_BYTES)
        finally:
            os.close(descriptor)
        self._rest = memoryview(window.data)
        self._offset = window.next
        return bool(window.data)


def try_to_open(path: Path) -> None:
    """Check that this process may write the file, and make its directories. Raises Refused."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(_open(path))
    except OSError as error:
        raise Refused(f"--output: cannot write {path}: {error.strerror}", WireRefusalCause.BAD_JOB) from error


def _append(path: str, source: int) -> None:
    """In the writing process: copy from the pipe to the file until the pipe's other end is closed."""
    target = _open(Path(path))
    while data := os.read(source, _WINDOW_BYTES):
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(target, rest) :]
            except OSError:
                time.sleep(_AGAIN_S)


def _open(path: Path) -> int:
    # O_NONBLOCK, so that opening a pipe does not wait for its reader.
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
