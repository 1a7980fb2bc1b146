"""Reads a log whose middle may have been given up (`ebbtide_agent.supervisor.log_cap`): the file has a hole there.

Offsets are those of all that was printed, whatever is still there.
"""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """What comes next of a log, and the offset at which the rest begins."""

    data: bytes
    next: int
    dropped: int = 0  # bytes that are not there any more; `data` says so in their place


def read_window(descriptor: int, offset: int, max_bytes: int) -> Window:
    """The log from `offset` on, up to where it ends or has a hole. Raises OSError."""
    while True:
        begin = first_data(descriptor, offset)
        if begin > offset:
            return Window(_marker(begin - offset), begin, begin - offset)
        data = os.pread(descriptor, min(max_bytes, _first_hole(descriptor, offset) - offset), offset)
        if not data or _first_hole(descriptor, offset) >= offset + len(data):
            return Window(data, offset + len(data))
        # Part of it was given up while it was read.


def _marker(count: int) -> bytes:
    return f"\n[ebb: {count} bytes of output are not kept: the log is over its limit, or the disk is full]\n".encode()


def first_data(descriptor: int, offset: int) -> int:
    """The first offset from here on with something in it; this one at the end of the file."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError:  # there is none
        return offset


def _first_hole(descriptor: int, offset: int) -> int:
    """The first offset from here on with nothing in it, which may be the end of the file."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_HOLE)
    except OSError:  # it is behind the end
        return offset
