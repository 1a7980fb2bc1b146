"""The file that a job's output is appended to because its user said so, beside the log that the node keeps."""

import os
from pathlib import Path

from ebbtide_agent.accounts import Account
from ebbtide_agent.log_file import read_window
from ebbtide_agent.rights import rights_of
from ebbtide_agent.supervisor.status import RefusalCause, Refused

_WINDOW_BYTES = 1024 * 1024
# That are copied at a time; other things have their turn then.
_WINDOWS = 8


class OutputFile:
    """Appends what is printed to one file, from the beginning of an attempt to its end."""

    def __init__(self, log: Path, path: Path, header: str = "", account: Account | None = None) -> None:
        """Open it with the rights of the account, and its directories if they are not there. Raises Refused."""
        self._log = log
        self._account = account
        self._offset = 0
        # Not to wait for whoever is to read from a pipe.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            with rights_of(account):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(path, flags, 0o666)
        except OSError as error:
            raise Refused(f"--output: cannot write {path}: {error.strerror}", RefusalCause.BAD_JOB) from error
        self._rest = memoryview(header.encode())

    def look(self, *, final: bool = False) -> bool:
        """Append what was printed since; whether there was anything. What the disk has no room for waits."""
        grown, windows = False, 0
        while self._write() and self._read():
            grown, windows = True, windows + 1
            if windows == _WINDOWS and not final:
                break
        return grown

    def close(self) -> None:
        """Nothing more is to come."""
        os.close(self._file)

    def _write(self) -> bool:
        try:
            with rights_of(self._account):  # so that a quota holds
                while self._rest:
                    self._rest = self._rest[os.write(self._file, self._rest) :]
        except OSError:
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
