"""Keeps what an attempt prints from filling the disk: of a log that is too long, the beginning and the end are kept.

The job writes its log itself and is never made to wait. What lies between is given back to the disk behind its back:
the file keeps its length, and gets a hole. Where the filesystem cannot do that, logs are kept whole.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide_agent.processes.linux import punch_hole

_BLOCK = 64 * 1024
# However little room there is, so much of a log is kept.
_LEAST_BYTES = 8 * _BLOCK


@dataclass(slots=True, eq=False)
class _File:
    path: Path
    size: int = 0
    begin: int = -1  # of the hole; -1: there is none
    end: int = 0


def _room(descriptor: int) -> int:
    """Bytes that the disk has left for this user."""
    found = os.fstatvfs(descriptor)
    return found.f_bavail * found.f_frsize


class LogCap:
    """The files of one attempt, which together take so many bytes of the disk at most, but for what a moment brings."""

    def __init__(self, files: Sequence[Path], limit_bytes: int, room: Callable[[int], int] = _room) -> None:
        self._files = [_File(path) for path in files]
        self._each = max(_LEAST_BYTES, limit_bytes // len(files))
        self._room = room

    def look(self, *, final: bool = False) -> bool:
        """Give up what is too much; whether they grow so fast that the next look should come soon."""
        grown = [self._look_at(file) for file in self._files]
        return any(grown)

    def _look_at(self, file: _File) -> bool:
        try:
            descriptor = os.open(file.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            return self._shorten(file, descriptor)
        except OSError:  # the filesystem cannot do that
            return False
        finally:
            os.close(descriptor)

    def _shorten(self, file: _File, descriptor: int) -> bool:
        found = os.fstat(descriptor)
        taken, before, file.size = found.st_blocks * 512, file.size, found.st_size
        # With little room left a log may take half of what there is for it: others print, too.
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
