"""Mix the lines of several sources, each line prefixed with the name of its source."""

from typing import Final

LONGEST: Final = 64 * 1024
"""Bytes of a line that is kept whole; a longer line is printed in pieces, because it may grow without limit."""


class Prefixed:
    """Prefix each line; bytes may come in pieces. With an empty prefix they stay as they are."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._within = False  # whether a line has begun and not ended

    def feed(self, data: bytes) -> bytes:
        """Return the next bytes with their prefixes."""
        if not self._prefix or not data:
            return data
        begin = b"" if self._within else self._prefix
        self._within = not data.endswith(b"\n")
        body = data if self._within else data[:-1]
        return begin + body.replace(b"\n", b"\n" + self._prefix) + (b"" if self._within else b"\n")

    def end(self) -> bytes:
        """Return a newline if a line has begun and not ended."""
        ended, self._within = b"\n" if self._within else b"", False
        return ended


class WholeLines:
    """Return whole lines only, so that they can stand between the lines of other sources."""

    def __init__(self) -> None:
        self._line = b""

    def feed(self, data: bytes) -> bytes:
        """Return the lines that ``data`` completes."""
        lines, newline, self._line = (self._line + data).rpartition(b"\n")
        return lines + newline + (self.end() + b"\n" if len(self._line) > LONGEST else b"")

    def end(self) -> bytes:
        """Return the rest, a line that was not completed."""
        line, self._line = self._line, b""
        return line
