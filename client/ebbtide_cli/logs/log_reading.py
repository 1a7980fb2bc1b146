"""Read logs: remember where a stream continues, and decide which of its bytes are printed."""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.logs.escaped import Escaped
from ebbtide_cli.logs.prefixed import Prefixed, WholeLines
from ebbtide_cli.logs.tidy import TidyLines
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.connection import follow

if TYPE_CHECKING:
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub


class LogPosition:
    """How far a log was read, so that nothing is repeated when its stream has to be opened again."""

    def __init__(self, request: client_pb2.ReadLogsRequest) -> None:
        self._request = request
        self._read: Counter[int] = Counter()  # by attempt: the offset up to which its log was read
        self._again: Counter[int] = Counter()  # the same for the current stream only
        self._last = 0

    def resumed(self) -> client_pb2.ReadLogsRequest:
        """Return the request that opens the next stream; its chunks have to be taken in order."""
        self._again, self._last = Counter(), max(self._read, default=0)
        asked = client_pb2.ReadLogsRequest()
        asked.CopyFrom(self._request)
        if self._read:  # the master applied these to the first stream
            asked.tail, asked.since = 0, 0.0
        return asked

    def take(self, chunk: client_pb2.LogChunk) -> bytes:
        """Return those bytes of the chunk that are new."""
        if chunk.attempt < self._last:
            return b""
        offset, next_, data = chunk.offset, chunk.next, chunk.data
        if not next_:  # an older master does not report offsets
            offset, next_ = self._again[chunk.attempt], self._again[chunk.attempt] + len(data)
        self._again[chunk.attempt] = next_
        known = self._read[chunk.attempt]
        self._read[chunk.attempt] = max(known, next_)
        if next_ <= known:
            return b""
        # If the lengths differ, the data replaces bytes that are not kept any more.
        return data[max(0, known - offset) :] if offset + len(data) == next_ else data


def output(
    master: str | Address | None, request: client_pb2.ReadLogsRequest, *, reached: bool = False
) -> Iterator[tuple[int, bytes]]:
    """Yield (attempt, bytes), and repeat nothing when the stream has to be opened again.

    Even the first connection may fail if the master was ``reached`` a moment ago. A node that is away is waited for
    only if the log is followed.
    """
    place = LogPosition(request)

    def read(stub: "ClientServiceStub") -> Iterator[tuple[int, bytes]]:
        for chunk in stub.ReadLogs(place.resumed()):
            if data := place.take(chunk):  # what was read before is no sign that the log goes on
                yield chunk.attempt, data

    return follow(master, read, reached=reached, awaits_node=request.follow)


class LogLines:
    """Prepare a log for printing: a prefix for each line, tidied lines, and only what is safe on a terminal.

    ``whole``: print only whole lines, because other logs' lines come between them.
    """

    def __init__(self, prefix: str, *, tidy: bool, whole: bool = False) -> None:
        self.prefix = prefix
        self._lines = Prefixed(prefix)
        self._cut = TidyLines() if tidy else WholeLines() if whole else None
        self._escaped = Escaped() if sys.stdout.isatty() else None
        self._attempt = 0

    def is_next(self, attempt: int) -> bool:
        """Whether the next bytes are from another attempt than the last ones."""
        before, self._attempt = self._attempt, attempt
        return before not in (0, attempt)

    def feed(self, data: bytes) -> bytes:
        """Return what can be printed after these bytes."""
        return self._shown(self._lines.feed(self._cut.feed(data) if self._cut else data))

    def end(self) -> bytes:
        """Return what is left to print at the end of an attempt."""
        rest = self._lines.feed(self._cut.end()) if self._cut else b""
        return self._shown(rest + self._lines.end())

    def close(self) -> bytes:
        """Return what is left to print at the end of the log."""
        return self.end() + (_encoded(self._escaped.end()) if self._escaped else b"")

    def _shown(self, data: bytes) -> bytes:
        return _encoded(self._escaped.feed(data)) if self._escaped else data


def _encoded(text: str) -> bytes:
    return text.encode(sys.stdout.encoding, "backslashreplace")
