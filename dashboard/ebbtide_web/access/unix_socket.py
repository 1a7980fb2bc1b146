"""The UNIX socket at which a proxy reaches the dashboard.

Only this account may connect to it, and one group if it is named. The socket of a dashboard that was killed is
replaced; whatever else lies at the path is left alone.
"""

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_machine.place import check_folder

MOST_BYTES: Final = 107
"""Bytes that the path of a socket may have."""
BACKLOG: Final = 256
ASKED_S: Final = 1.5
"""Seconds for which whoever listens at the path already may take to accept a connection."""


class NoSocketError(Exception):
    """The socket cannot be made at this path; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A socket that listens, with what tells it from another one that is put in its place."""

    path: Path
    socket: socket.socket
    facts: os.stat_result

    def remove(self) -> None:
        """Remove the path, if this socket is still what lies there. It is to be called while the socket listens."""
        with suppress(OSError), _alone(self.path):
            if _is(self.path, self.facts):
                self.path.unlink()


def listen_at(path: Path, group: int | None = None) -> UnixSocket:
    """Make the socket and listen. Raises `NoSocketError`, `NotTrusted` and OSError.

    ``group`` (a gid) may connect, too. Another account that can change the folder could put a socket of its own there
    and be given tokens, so such a folder is refused.
    """
    path = path.absolute()
    if len(os.fsencode(path)) > MOST_BYTES:
        raise NoSocketError(f"the path has more than {MOST_BYTES} bytes, which is the most that a socket's may have")
    check_folder(path.parent)
    with _alone(path):
        _clear(path)
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            opened.bind(str(path))
            try:
                os.chmod(path, 0o600)
                if group is not None:
                    _open_to(path, group)
                opened.listen(BACKLOG)  # nobody could connect before
            except BaseException:
                path.unlink()
                raise
        except BaseException:
            opened.close()
            raise
        return UnixSocket(path, opened, path.lstat())


def _open_to(path: Path, group: int) -> None:
    try:
        os.chown(path, -1, group, follow_symlinks=False)
    except PermissionError:
        raise NoSocketError("the group that may connect has to be one of this account's own") from None
    os.chmod(path, 0o660)


def _clear(path: Path) -> None:
    """Remove the socket of a dead dashboard of this account. Raises `NoSocketError` if there is anything else."""
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(facts.st_mode):
        raise NoSocketError("there is a file of this name that is no socket: it is left alone")
    if facts.st_uid != os.geteuid():
        raise NoSocketError(
            f"there is a socket of uid {facts.st_uid}, and this is uid {os.geteuid()}: it is left alone"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ASKED_S)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            words = os.strerror(error.errno) if error.errno else "no answer"
            raise NoSocketError(f"it is not known whether the socket there is in use: {words}") from None
    raise NoSocketError("a process listens there already: end it, or name another path")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process at a time make or remove the socket at ``path``: else one could remove what another just made.

    The lock is a file that no other account can open, and that is removed by whoever has it.
    """
    lock = path.with_name(f".{path.name}.lock")
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _is(lock, os.fstat(descriptor)):
                continue  # whoever had the lock before has removed it
            try:
                yield
            finally:
                lock.unlink()
            return
        finally:
            os.close(descriptor)


def _is(path: Path, facts: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.lstat(), facts)
    except FileNotFoundError:
        return False
