"""What a terminal would show in the end of lines that were written over and over, as progress bars are."""

_NEWLINE = b"\n"
_RETURN = b"\r"


class Tidy:
    """Takes output in pieces, and gives back whole lines, of each only what its last rewriting left."""

    def __init__(self) -> None:
        self._line = b""

    def feed(self, data: bytes) -> bytes:
        """The lines that ``data`` completes."""
        *lines, rest = (self._line + data).split(_NEWLINE)
        # Of the beginning of a line no more is kept than will be shown, however often it is rewritten.
        self._line = rest if rest.endswith(_RETURN) and rest.count(_RETURN) == 1 else _kept(rest)
        return b"".join([_last(line) + _NEWLINE for line in lines])

    def end(self) -> bytes:
        """What has no end and never will."""
        line, self._line = self._line, b""
        return _last(line) + _NEWLINE if line else b""


def _last(line: bytes) -> bytes:
    """What was written after the last return, or before it if nothing was."""
    return line.rstrip(_RETURN).rpartition(_RETURN)[2]


def _kept(line: bytes) -> bytes:
    """The same, but with the returns at its end, after which something may come."""
    shown = _last(line)
    return shown + _RETURN if line.endswith(_RETURN) else shown
