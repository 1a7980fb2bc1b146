"""The file that a job's output is appended to because its user said so, beside the log that the node keeps.

A process of the user's opens it and writes to it, through which no file system that hangs holds up anybody else.
"""

import fcntl
import math
import os
import select
import time
from contextlib import suppress
from pathlib import Path

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.helper.errand import Errand
from ebbtide_agent.logs.log_file import read_window
from ebbtide_agent.supervisor.status import RefusalCause, Refused

_WINDOW_BYTES = 1024 * 1024
# That are copied at a time; other things have their turn then.
_WINDOWS = 8
# How often it is tried again where the disk has no room, or nobody reads from a pipe.
_AGAIN_S = 0.1


class OutputFile:
    """Appends what is printed to one file, from the beginning of an attempt to its end."""

    def __init__(self, log: Path, path: Path, header: str = "", account: Account | None = None) -> None:
        """It is written with the rights of the account. Raises OSError if there can be no process for that."""
        self.patience_s = 5.0  # at the end, with what does not go on; it is in the node's log in any case
        self._log = log
        self._offset = 0
        self._rest = memoryview(header.encode())
        readable, self._pipe = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)
        with suppress(OSError):  # then it takes less at a time
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _WINDOW_BYTES)
        try:
            self._errand = Errand(_append, str(path), account=account, within_s=math.inf, descriptors=[readable])
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(readable)

    def look(self, *, final: bool = False) -> bool:
        """Append what was printed since; whether there was anything. What the disk has no room for waits."""
        grown, windows = False, 0
        while self._write(self.patience_s if final else 0.0) and self._read():
            grown, windows = True, windows + 1
            if windows == _WINDOWS and not final:
                break
        return grown

    def close(self) -> None:
        """Nothing more is to come."""
        os.close(self._pipe)
        self._errand.deadline = time.monotonic() + self.patience_s
        with suppress(OSError):
            self._errand.wait()

    def _write(self, patience_s: float) -> bool:
        while self._rest:
            try:
                self._rest = self._rest[os.write(self._pipe, self._rest) :]
            except BlockingIOError:
                room = select.poll()
                room.register(self._pipe, select.POLLOUT)
                if not room.poll(1000 * patience_s):
                    return False
            except OSError:  # its process is gone
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
    """See whether it can be written with our rights. Makes its directories. Raises Refused."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(_open(path))
    except OSError as error:
        raise Refused(f"--output: cannot write {path}: {error.strerror}", RefusalCause.BAD_JOB) from error


def _append(path: str, source: int) -> None:
    """In its process: what comes from the pipe, until its other end is closed."""
    target = _open(Path(path))
    while data := os.read(source, _WINDOW_BYTES):
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(target, rest) :]
            except OSError:
                time.sleep(_AGAIN_S)


def _open(path: Path) -> int:
    # Not to wait for whoever is to read from a pipe.
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
