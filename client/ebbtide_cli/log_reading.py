"""Logs as they are read: from where a stream goes on, and what of their bytes is printed."""

import sys
from collections import Counter

from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.escaped import Escaped
from ebbtide_cli.prefixed import Prefixed, Whole
from ebbtide_cli.tidy import Tidy


class LogPosition:
    """Up to where a log was read, so that nothing is repeated when its stream has to be opened again."""

    def __init__(self, request: client_pb2.ReadLogsRequest) -> None:
        self._request = request
        self._read: Counter[int] = Counter()  # of each attempt, up to which offset
        self._again: Counter[int] = Counter()  # the same of this stream
        self._last = 0

    def resumed(self) -> client_pb2.ReadLogsRequest:
        """What to open the next stream with; its chunks are to be taken in order."""
        self._again, self._last = Counter(), max(self._read, default=0)
        asked = client_pb2.ReadLogsRequest()
        asked.CopyFrom(self._request)
        if self._read:  # what is not wanted of it is known by now, and what was printed meanwhile is
            asked.tail, asked.since = 0, 0.0
        return asked

    def take(self, chunk: client_pb2.LogChunk) -> bytes:
        """What of it is new."""
        if chunk.attempt < self._last:
            return b""
        offset, next_, data = chunk.offset, chunk.next, chunk.data
        if not next_:  # an older master does not say where it stands
            offset, next_ = self._again[chunk.attempt], self._again[chunk.attempt] + len(data)
        self._again[chunk.attempt] = next_
        known = self._read[chunk.attempt]
        self._read[chunk.attempt] = max(known, next_)
        if next_ <= known:
            return b""
        # Else it stands for what is not kept.
        return data[max(0, known - offset) :] if offset + len(data) == next_ else data


class LogLines:
    """What of a log is printed: each line after a prefix, tidied, and as a terminal may be shown it.

    ``whole``: only whole lines, because others come between them.
    """

    def __init__(self, prefix: str, *, tidy: bool, whole: bool = False) -> None:
        self.prefix = prefix
        self._lines = Prefixed(prefix)
        self._cut = Tidy() if tidy else Whole() if whole else None
        self._escaped = Escaped() if sys.stdout.isatty() else None
        self._attempt = 0

    def is_next(self, attempt: int) -> bool:
        """Whether what comes now is of another attempt than what came before."""
        before, self._attempt = self._attempt, attempt
        return before not in (0, attempt)

    def feed(self, data: bytes) -> bytes:
        """What can be printed with these next bytes."""
        return self._shown(self._lines.feed(self._cut.feed(data) if self._cut else data))

    def end(self) -> bytes:
        """What the end of an attempt leaves to be printed."""
        rest = self._lines.feed(self._cut.end()) if self._cut else b""
        return self._shown(rest + self._lines.end())

    def close(self) -> bytes:
        """What the end of the log does."""
        return self.end() + (_encoded(self._escaped.end()) if self._escaped else b"")

    def _shown(self, data: bytes) -> bytes:
        return _encoded(self._escaped.feed(data)) if self._escaped else data


def _encoded(text: str) -> bytes:
    return text.encode(sys.stdout.encoding, "backslashreplace")
