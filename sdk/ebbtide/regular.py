"""Opens regular files and nothing else, so that a pipe, device or link in a file's place cannot block the caller.

Tells what is missing from what cannot be looked at just now.
"""

import errno
import os
import stat
import time
from contextlib import suppress
from pathlib import Path


def flags(*names: str) -> int:
    """Return these flags of `os.open` together; one that the system lacks, as Windows lacks most of them, counts 0."""
    return sum(getattr(os, name, 0) for name in names)


_FLAGS = flags("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC")
# Why `os.stat` finds nothing at a path; any other error leaves open whether something is there.
_MISSING = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))
# How long an open waits for another process, such as a file server, to give up its lease on the file.
_LEASE_S = 2.0
_LOOK_S = 0.05


def is_there(path: str | Path) -> bool:
    """Return whether there is anything at the path. Raises OSError if the system cannot tell.

    From Python 3.14 on, `Path.exists` and `Path.is_dir` are False for every error, such as a stale handle.
    """
    return _mode(path) != 0


def is_folder(path: str | Path) -> bool:
    """Return whether there is a directory at the path. Raises OSError if the system cannot tell."""
    return stat.S_ISDIR(_mode(path))


def open_regular(path: str | Path, *, dir_fd: int | None = None) -> int:
    """Open the file for reading and return its descriptor. Raises OSError, also if it is not a regular file."""
    descriptor = _opened(path, dir_fd)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def read_regular(path: str | Path, limit: int, *, dir_fd: int | None = None) -> bytes:
    """Return the file's content. Raises OSError, also if it is not a regular file or has more than `limit` bytes."""
    descriptor = open_regular(path, dir_fd=dir_fd)
    with open(descriptor, "rb") as file:
        # Check the size before reading: a sparse file of any length costs nothing to make.
        content = file.read(limit + 1) if os.fstat(descriptor).st_size <= limit else None
    if content is None or len(content) > limit:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", str(path))
    return content


def create(path: Path) -> int:
    """Create a new regular file in place of what is at `path`, and return a descriptor to write it. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)


def _mode(path: str | Path) -> int:
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in _MISSING:
            return 0
        raise


def _opened(path: str | Path, dir_fd: int | None) -> int:
    until = time.monotonic() + _LEASE_S
    while True:
        try:
            return os.open(path, os.O_RDONLY | _FLAGS, dir_fd=dir_fd)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
        time.sleep(_LOOK_S)
