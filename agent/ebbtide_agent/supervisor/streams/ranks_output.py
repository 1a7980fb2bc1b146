"""Merge what an attempt's ranks print, each to a file of its own: line by line, as the lines are noticed."""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide_agent.logs.log_file import Window, read_window

_WINDOW_BYTES = 256 * 1024
# A line that is longer is appended before its end has come.
_LONGEST_LINE_BYTES = 64 * 1024


@dataclass(slots=True, eq=False)
class _Rank:
    prefix: bytes
    path: Path
    offset: int = 0  # everything before it is in the log
    seen: int = 0  # where the file ended at the last look


class RanksOutput:
    """Appends to one log what was printed to the ranks' files.

    A record beside the log says how far each file was read. A process that takes over goes on from there, so nothing
    is appended twice.
    """

    def __init__(self, ranks: Sequence[tuple[str, Path]], log: Path, record: Path) -> None:
        """`ranks` are the prefix and the file of each rank. Raises OSError."""
        self._ranks = [_Rank(prefix.encode(), path) for prefix, path in ranks]
        self._format = struct.Struct(f"<{1 + len(ranks)}Q")
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._record = os.open(record, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._go_on()

    def close(self) -> None:
        """Close the log and the record."""
        os.close(self._log)
        os.close(self._record)

    def look(self, *, final: bool = False) -> bool:
        """Append the lines that came since the last look, and return whether there were any.

        The final look also takes unfinished lines. When the disk is full, the next look tries again.
        """
        grown = False
        for rank in self._ranks:
            while self._take(rank, final):
                grown = True
                if not final:
                    break
        return grown

    def _take(self, rank: _Rank, final: bool) -> bool:
        window = _read(rank)
        if window.dropped:  # it was printed faster than it could be put together
            return self._skip(rank, window)
        text = window.data
        whole = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        end = rank.offset + len(text)
        # An unfinished line that does not grow, such as a prompt, is not held back for ever.
        if not whole and (final or len(text) >= _LONGEST_LINE_BYTES or end == rank.seen):
            whole = len(text)
        rank.seen = end
        if not whole or not self._append(_prefixed(text[:whole], rank.prefix)):
            return False
        rank.offset += whole
        self._note()
        return True

    def _skip(self, rank: _Rank, window: Window) -> bool:
        if not self._append(_prefixed(window.data, rank.prefix)):
            return False
        rank.offset = rank.seen = window.next
        self._note()
        return True

    def _append(self, text: bytes) -> bool:
        """Append all of the text, or nothing and return False."""
        size = os.fstat(self._log).st_size
        try:
            rest = memoryview(text)
            while rest:
                rest = rest[os.write(self._log, rest) :]
        except OSError:
            os.ftruncate(self._log, size)
            return False
        return True

    def _note(self) -> None:
        size = os.fstat(self._log).st_size
        try:
            os.pwrite(self._record, self._format.pack(size, *[rank.offset for rank in self._ranks]), 0)
        except OSError:  # the record matters only if this process is killed before there is room again
            return

    def _go_on(self) -> None:
        """Go on from where another process stopped, if it left a record."""
        record = os.pread(self._record, self._format.size, 0)
        if len(record) < self._format.size:
            return
        size, *offsets = self._format.unpack(record)
        os.ftruncate(self._log, min(size, os.fstat(self._log).st_size))
        for rank, offset in zip(self._ranks, offsets, strict=True):
            rank.offset = offset


def _read(rank: _Rank) -> Window:
    try:
        descriptor = os.open(rank.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return Window(b"", rank.offset)
    try:
        return read_window(descriptor, rank.offset, _WINDOW_BYTES)
    finally:
        os.close(descriptor)


def _prefixed(text: bytes, prefix: bytes) -> bytes:
    if not prefix:
        return text
    return b"".join(prefix + line if line.strip(b"\r\n") else line for line in text.splitlines(keepends=True))
