"""Lines of several sources, each with the name of its own."""

from typing import Final

LONGEST: Final = 64 * 1024
"""Of a line that stays whole: what is longer is printed as several, because nobody knows how long it gets."""


class Prefixed:
    """Begins each line with ``prefix``; bytes may come in pieces. Without a prefix they stay as they are."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._within = False  # a line

    def feed(self, data: bytes) -> bytes:
        """The next bytes."""
        if not self._prefix or not data:
            return data
        begin = b"" if self._within else self._prefix
        self._within = not data.endswith(b"\n")
        body = data if self._within else data[:-1]
        return begin + body.replace(b"\n", b"\n" + self._prefix) + (b"" if self._within else b"\n")

    def end(self) -> bytes:
        """Ends the line, if there is one."""
        ended, self._within = b"\n" if self._within else b"", False
        return ended


class Whole:
    """Gives back whole lines only, so that they can stand between those of others."""

    def __init__(self) -> None:
        self._line = b""

    def feed(self, data: bytes) -> bytes:
        """The lines that ``data`` completes."""
        lines, newline, self._line = (self._line + data).rpartition(b"\n")
        return lines + newline + (self.end() + b"\n" if len(self._line) > LONGEST else b"")

    def end(self) -> bytes:
        """What has no end and never will."""
        line, self._line = self._line, b""
        return line
