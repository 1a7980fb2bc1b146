"""Keep an attempt's output from filling the disk: of a log that is too long, only the beginning and the end are kept.

The job writes its log itself and never waits. This module frees the blocks in the middle: the file keeps its length,
and gets a hole. Where the filesystem cannot punch holes, logs are kept whole.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide_agent.processes.linux import punch_hole

_BLOCK = 64 * 1024
# The part of a log that is always kept, however little room there is.
_LEAST_BYTES = 8 * _BLOCK


@dataclass(slots=True, eq=False)
class _CappedLog:
    path: Path
    size: int = 0
    begin: int = -1  # of the hole; -1: no hole yet
    end: int = 0


def _room(descriptor: int) -> int:
    """Return the bytes that are left on the disk for this user."""
    found = os.fstatvfs(descriptor)
    return found.f_bavail * found.f_frsize


class LogCap:
    """Keeps the files of one attempt within a number of bytes on disk together, except for short bursts."""

    def __init__(self, files: Sequence[Path], limit_bytes: int, room: Callable[[int], int] = _room) -> None:
        self._files = [_CappedLog(path) for path in files]
        self._each = max(_LEAST_BYTES, limit_bytes // len(files))
        self._room = room

    def look(self, *, final: bool = False) -> bool:
        """Free what is too much; return whether a file grows so fast that the next look should come soon."""
        grown = [self._look_at(file) for file in self._files]
        return any(grown)

    def _look_at(self, file: _CappedLog) -> bool:
        try:
            descriptor = os.open(file.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            return self._shorten(file, descriptor)
        except OSError:  # the filesystem cannot punch holes
            return False
        finally:
            os.close(descriptor)

    def _shorten(self, file: _CappedLog, descriptor: int) -> bool:
        found = os.fstat(descriptor)
        taken, before, file.size = found.st_blocks * 512, file.size, found.st_size
        # With little room left a log may take half of what it could have: other logs grow, too.
        most = min(self._each, max(_LEAST_BYTES, (taken + self._room(descriptor)) // 2))
        if taken > most:
            begin, end = _aligned(most // 4), _aligned(file.size - most // 2)
            begin = begin if file.begin < 0 else min(begin, file.begin)
            if begin < file.begin or file.begin < 0:
                file.begin, file.end = begin, begin
            if end > file.end:
                punch_hole(descriptor, file.end, end - file.end)
                file.end = end
        return file.size - before > most // 16


def _aligned(offset: int) -> int:
    return offset // _BLOCK * _BLOCK
