"""Lines of several sources, each with the name of its own."""


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
