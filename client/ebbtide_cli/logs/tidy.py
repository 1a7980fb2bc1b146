"""Keep of lines that were written over and over, as progress bars are, only what a terminal would show at the end."""

_NEWLINE = b"\n"
_RETURN = b"\r"


class TidyLines:
    """Take output in pieces, and return whole lines, each with only its last rewriting."""

    def __init__(self) -> None:
        self._line = b""

    def feed(self, data: bytes) -> bytes:
        """Return the lines that ``data`` completes."""
        *lines, rest = (self._line + data).split(_NEWLINE)
        # Of an incomplete line only the part that would be shown is kept, however often the line is rewritten.
        self._line = rest if rest.endswith(_RETURN) and rest.count(_RETURN) == 1 else _kept(rest)
        return b"".join([_last(line) + _NEWLINE for line in lines])

    def end(self) -> bytes:
        """Return the rest, a line that was not completed."""
        line, self._line = self._line, b""
        return _last(line) + _NEWLINE if line else b""


def _last(line: bytes) -> bytes:
    """Return the part after the last carriage return, or before it if nothing follows."""
    return line.rstrip(_RETURN).rpartition(_RETURN)[2]


def _kept(line: bytes) -> bytes:
    """Return the part that would be shown, with a carriage return at its end, after which more may come."""
    shown = _last(line)
    return shown + _RETURN if line.endswith(_RETURN) else shown
