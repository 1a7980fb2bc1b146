"""The UNIX socket on which a master serves its own account: ``run/master.sock`` in its home.

Only that account and root can enter the directory, so the kernel keeps all others out. A client checks the owner of
the socket and of the listening process before it sends anything.
"""

import _socket  # the part in C: `socket` adds names for hundreds of numbers, which takes longer than to connect
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ebbtide_machine.place import NotTrusted, check_folder, make_folder

FOLDER: Final = "run"
NAME: Final = "master.sock"
SCHEME: Final = "unix:"
ANSWER_S: Final = 1.5
_CREDENTIALS: Final = struct.Struct("3i")
"""The peer's pid, uid and gid."""


@contextmanager
def made(home: Path) -> Iterator[str]:
    """Give the gRPC address on which a master listens, for as long as the block lasts.

    A folder of this account that others may enter, and could not write to, is closed to them: at each mount of a volume
    with an ``fsGroup``, Kubernetes opens all its folders to that group. Raises `NotTrusted`, OSError.
    """
    folder = home / FOLDER
    make_folder(folder)
    if folder.stat().st_uid == os.geteuid():
        folder.chmod(0o700)
    with entered(home) as target:
        with suppress(FileNotFoundError):
            os.unlink(target.removeprefix(SCHEME))  # the socket of a master that was killed
        yield target


@contextmanager
def entered(home: Path) -> Iterator[str]:
    """Give the gRPC address on which the master of ``home`` would listen, for as long as the block lasts.

    The path of ``home`` may be of any length, because the address leads through a descriptor of the directory. Raises
    `NotTrusted` if another account can enter the directory, and OSError if it does not exist.
    """
    folder = home / FOLDER
    check_folder(folder)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            raise NotTrusted(f"{folder} can be entered by others: chmod 0700 {folder}")
        yield f"{SCHEME}/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)


@contextmanager
def reached(home: Path) -> Iterator[str]:
    """Give the address if a master of this account or of root listens there. Raises `NotTrusted`, OSError."""
    with entered(home) as target:
        connected(home, target).close()
        yield target


def connected(home: Path, target: str) -> _socket.socket:
    """Connect to ``target``, which is `entered`, if it is a master of this account or of root that listens there.

    Raises `NotTrusted`, OSError.
    """
    path = target.removeprefix(SCHEME)
    facts = os.lstat(path)
    named = home / FOLDER / NAME
    if not stat.S_ISSOCK(facts.st_mode):
        raise NotTrusted(f"{named} is no socket")
    if facts.st_uid not in (0, os.geteuid()):
        raise NotTrusted(f"{named} belongs to uid {facts.st_uid}, and this is uid {os.geteuid()}")
    connection = _socket.socket(_socket.AF_UNIX)
    try:
        connection.settimeout(ANSWER_S)
        connection.connect(path)
        found = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(found)
        if uid != facts.st_uid:
            raise NotTrusted(f"uid {uid} listens at {named}, which belongs to uid {facts.st_uid}")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection
