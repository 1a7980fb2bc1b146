"""Reads a log whose middle may have been dropped (`supervisor.streams.log_cap`), where the file has a hole.

Offsets count all that was printed, including what is not there any more.
"""

import errno
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """The next part of a log, and the offset at which the rest begins."""

    data: bytes
    next: int
    dropped: int = 0  # bytes that are not there any more; `data` says so in their place


def read_window(descriptor: int, offset: int, max_bytes: int) -> Window:
    """Return at most `max_bytes` of the log from `offset` on, up to its end or a hole. Raises OSError."""
    while True:
        begin = first_data(descriptor, offset)
        if begin > offset:
            return Window(_marker(begin - offset), begin, begin - offset)
        data = os.pread(descriptor, min(max_bytes, _first_hole(descriptor, offset) - offset), offset)
        if not data or _first_hole(descriptor, offset) >= offset + len(data):
            return Window(data, offset + len(data))
        # Part of the data was dropped while it was read.


def _marker(count: int) -> bytes:
    return f"\n[ebb: {count} bytes of output are not kept: the log is over its limit, or the disk is full]\n".encode()


def first_data(descriptor: int, offset: int) -> int:
    """Return the first offset from here on with data in the file; the file's end if only a hole is left."""
    size = os.fstat(descriptor).st_size  # before the look, because what is written meanwhile is data
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        return max(offset, size) if error.errno == errno.ENXIO else offset


def _first_hole(descriptor: int, offset: int) -> int:
    """Return the first offset from here on without data, which may be the end of the file."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_HOLE)
    except OSError:  # the offset is behind the end
        return offset
