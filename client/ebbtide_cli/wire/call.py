"""Makes one gRPC call on one connection: sends the requests, then gives the replies as they arrive.

A connection serves one call, so that nothing is shared between calls, and the end of the connection ends the call. The
thread that waits for a reply reads from the connection itself, so a signal handler can raise an exception there.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ebbtide_cli.wire import frames
from ebbtide_cli.wire.hpack import Decoder, encoded
from ebbtide_cli.wire.status import CallFailed, CallStatus

if TYPE_CHECKING:
    from _socket import socket

STREAM: Final = 1
"""The number of the only call of a connection."""
WINDOW: Final = 1 << 20
"""How many bytes of replies the other end may send before this end has read half of them."""
MAX_HEADERS: Final = 1 << 20
"""The most bytes of headers or trailers that this end takes."""
_READ_BYTES: Final = 1 << 18
_SENT_AT_ONCE: Final = 1 << 16
_PREFIX: Final = 5
"""Bytes before each message: whether it is compressed, and its length."""
_RESET: Final = {
    7: CallStatus.UNAVAILABLE,
    8: CallStatus.CANCELLED,
    11: CallStatus.RESOURCE_EXHAUSTED,
    12: CallStatus.PERMISSION_DENIED,
}
"""What HTTP/2's error codes mean to a call; all others mean INTERNAL."""
_HTTP: Final = {
    "400": CallStatus.INTERNAL,
    "401": CallStatus.UNAUTHENTICATED,
    "403": CallStatus.PERMISSION_DENIED,
    "404": CallStatus.UNIMPLEMENTED,
    "429": CallStatus.UNAVAILABLE,
    "502": CallStatus.UNAVAILABLE,
    "503": CallStatus.UNAVAILABLE,
    "504": CallStatus.UNAVAILABLE,
}


class Call:
    """A call on ``connection``, which is closed at the end. Only `cancel` may be used by several threads."""

    def __init__(self, connection: "socket", timeout: float | None) -> None:
        self._connection = connection
        self._ends = None if timeout is None else time.monotonic() + timeout
        self._timeout = timeout
        self._decoder = Decoder()
        self._unread = bytearray()  # what was received and is not yet a whole frame
        self._unsent = bytearray()
        self._body = bytearray()  # what was received and is not yet a whole message
        self._messages: deque[bytes] = deque()
        self._stream_window = self._connection_window = self._first_window = frames.FIRST_WINDOW
        self._max_frame = frames.MAX_FRAME
        self._taken = 0  # bytes that the other end does not know to be read
        self._opened = self._over = self._cancelled = self._unheard = False
        self._trailers: dict[str, str] = {}

    def replies(self, path: str, metadata: Iterable[tuple[str, str]], requests: Iterable[bytes]) -> Iterator[bytes]:
        """Send the requests to the method at ``path``, and yield its replies. Raises `CallFailed`."""
        try:
            for _ in self._sending(path, metadata, requests):
                yield from self._arrived()
            while True:
                yield from self._arrived()
                if self._over:
                    self._check_end()
                    return
                self._take_frame()
        except TimeoutError:
            raise CallFailed(CallStatus.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None
        except ValueError as error:
            raise CallFailed(CallStatus.UNAVAILABLE, f"what answers speaks no gRPC: {error}") from None
        finally:
            self.close()

    def cancel(self) -> None:
        """End the call soon, from another thread than the one that waits for it."""
        self._cancelled = True
        with suppress(OSError):  # it has ended already
            self._connection.shutdown(2)  # both ways

    def close(self) -> None:
        """End the call, and tell the other end so if it does not expect that."""
        if not self._over and not self._cancelled:
            with suppress(OSError):  # the end of the connection says the same
                self._connection.settimeout(0)
                self._connection.send(frames.frame(frames.RST_STREAM, 0, STREAM, frames.number(frames.CANCEL)))
        self._over = True
        self._connection.close()

    def _arrived(self) -> Iterator[bytes]:
        while self._messages:
            yield self._messages.popleft()

    def _sending(self, path: str, metadata: Iterable[tuple[str, str]], requests: Iterable[bytes]) -> Iterator[None]:
        """Send the whole request, and pause after each part of it; the other end may answer before it has read all."""
        self._unsent += frames.PREFACE
        self._unsent += frames.settings({frames.ENABLE_PUSH: 0, frames.INITIAL_WINDOW_SIZE: WINDOW})
        self._widen(0, WINDOW - frames.FIRST_WINDOW)
        self._put_headers(encoded((*self._pseudo_headers(path), *metadata)))
        for request in requests:
            self._put_data(b"\0" + frames.number(len(request)))
            self._put_data(request)
            if self._over:
                return
            yield
        self._unsent += frames.frame(frames.DATA, frames.END_STREAM, STREAM)
        self._flush()

    def _pseudo_headers(self, path: str) -> Iterator[tuple[str, str]]:
        yield ":method", "POST"
        yield ":scheme", "http"
        yield ":path", path
        yield ":authority", "localhost"
        if self._timeout is not None:
            yield "grpc-timeout", timeout_words(self._timeout)
        yield "content-type", "application/grpc"
        yield "te", "trailers"

    def _put_headers(self, block: bytes) -> None:
        kind = frames.HEADERS
        while len(block) > frames.MAX_FRAME:
            self._unsent += frames.frame(kind, 0, STREAM, block[: frames.MAX_FRAME])
            kind, block = frames.CONTINUATION, block[frames.MAX_FRAME :]
        self._unsent += frames.frame(kind, frames.END_HEADERS, STREAM, block)

    def _put_data(self, data: bytes) -> None:
        """Send ``data`` as far as the other end takes it, and wait until it takes the rest."""
        at = 0
        while at < len(data) and not self._over:
            room = min(self._stream_window, self._connection_window, self._max_frame)
            if room <= 0 or self._unheard:
                self._flush()
                self._take_frame()
                continue
            part = data[at : at + room]
            self._unsent += frames.frame(frames.DATA, 0, STREAM, part)
            self._stream_window -= len(part)
            self._connection_window -= len(part)
            at += len(part)
            if len(self._unsent) >= _SENT_AT_ONCE:
                self._flush()

    def _flush(self) -> None:
        """Send what is to be sent. If the other end is gone, what it said before is still to be read."""
        if self._unsent and not self._unheard:
            self._wait_no_longer_than_allowed()
            try:
                self._connection.sendall(self._unsent)
            except ConnectionError:
                self._unheard = True
        self._unsent.clear()

    def _wait_no_longer_than_allowed(self) -> None:
        """Let the next operation raise TimeoutError at the end of the time that the call has."""
        if self._ends is None:
            return
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)

    def _take_frame(self) -> None:
        """Read a frame and act on it. Raises OSError, ValueError or `CallFailed`."""
        kind, flags, stream, payload = self._read_frame()
        match kind:
            case frames.DATA if stream == STREAM:
                self._take_data(flags, payload)
            case frames.HEADERS if stream == STREAM:
                self._take_headers(flags, payload)
            case frames.SETTINGS if not flags & frames.ACK:
                self._take_settings(payload)
            case frames.WINDOW_UPDATE:
                self._take_window(stream, payload)
            case frames.PING if not flags & frames.ACK:
                self._unsent += frames.frame(frames.PING, frames.ACK, 0, payload)
            case frames.RST_STREAM if stream == STREAM:
                code = int.from_bytes(payload, "big")
                raise CallFailed(
                    _RESET.get(code, CallStatus.INTERNAL), f"the call was ended with HTTP/2's error {code}"
                )
            case frames.GOAWAY:
                if int.from_bytes(payload[:4], "big") & frames.MAX_WINDOW < STREAM:
                    raise self._lost(payload[8:].decode(errors="replace") or "it takes no calls")
            case frames.DATA | frames.HEADERS | frames.CONTINUATION | frames.PUSH_PROMISE:
                raise ValueError(f"a frame of kind {kind} belongs to no call")
        self._flush()

    def _read_frame(self) -> tuple[int, int, int, bytes]:
        """Return the kind, flags, stream and payload of the next frame."""
        self._fill(frames.HEAD_BYTES)
        length, kind, flags, stream = frames.read_head(self._unread)
        if length > frames.MAX_FRAME:
            raise ValueError(f"a frame has {length} bytes")
        end = frames.HEAD_BYTES + length
        self._fill(end)
        payload = bytes(self._unread[frames.HEAD_BYTES : end])
        del self._unread[:end]
        return kind, flags, stream, payload

    def _fill(self, size: int) -> None:
        """Wait until so many bytes have arrived."""
        while len(self._unread) < size:
            self._wait_no_longer_than_allowed()
            received = self._connection.recv(_READ_BYTES)
            if not received:
                raise self._lost("the connection ended")
            self._unread += received

    def _take_data(self, flags: int, payload: bytes) -> None:
        if not self._opened:
            raise ValueError("a message comes before the headers")
        self._taken += len(payload)
        self._body += _unpadded(flags, payload)
        while len(self._body) >= _PREFIX:
            end = _PREFIX + int.from_bytes(self._body[1:_PREFIX], "big")
            if self._body[0]:
                raise CallFailed(CallStatus.INTERNAL, "a reply is compressed, which was not asked for")
            if len(self._body) < end:
                break
            self._messages.append(bytes(self._body[_PREFIX:end]))
            del self._body[:end]
        if flags & frames.END_STREAM:
            self._over = True
        elif self._taken >= WINDOW // 2:
            self._widen(0, self._taken)
            self._widen(STREAM, self._taken)
            self._taken = 0

    def _widen(self, stream: int, size: int) -> None:
        """Let the other end send so many more bytes."""
        self._unsent += frames.frame(frames.WINDOW_UPDATE, 0, stream, frames.number(size))

    def _take_headers(self, flags: int, payload: bytes) -> None:
        block = bytearray(_unpadded(flags, payload))
        if flags & frames.PRIORITY:
            del block[:5]
        more = flags
        while not more & frames.END_HEADERS:
            kind, more, stream, payload = self._read_frame()
            if kind != frames.CONTINUATION or stream != STREAM or len(block) > MAX_HEADERS:
                raise ValueError("headers are not continued as they should be")
            block += payload
        headers = {name.decode("latin-1"): text.decode("latin-1") for name, text in self._decoder.decode(bytes(block))}
        if not self._opened:
            self._check_headers(headers)
        elif not flags & frames.END_STREAM:
            raise ValueError("headers come twice")
        self._opened = True
        if flags & frames.END_STREAM:
            self._over, self._trailers = True, headers

    def _check_headers(self, headers: dict[str, str]) -> None:
        http, kind = headers.get(":status", ""), headers.get("content-type", "")
        if http.startswith("1"):
            raise ValueError(f"it answers with HTTP status {http}")
        if http != "200":
            raise CallFailed(_HTTP.get(http, CallStatus.UNKNOWN), f"it answers with HTTP status {http or 'none'}")
        if not kind.startswith("application/grpc"):
            raise CallFailed(CallStatus.UNKNOWN, f"it answers with {kind or 'nothing of a known kind'}")

    def _take_settings(self, payload: bytes) -> None:
        settings = frames.read_settings(payload)
        window = settings.get(frames.INITIAL_WINDOW_SIZE, self._first_window)
        self._stream_window += window - self._first_window
        self._first_window = window
        self._max_frame = max(frames.MAX_FRAME, settings.get(frames.MAX_FRAME_SIZE, self._max_frame))
        self._unsent += frames.frame(frames.SETTINGS, frames.ACK, 0)

    def _take_window(self, stream: int, payload: bytes) -> None:
        size = int.from_bytes(payload, "big") & frames.MAX_WINDOW
        if stream == 0:
            self._connection_window += size
        elif stream == STREAM:
            self._stream_window += size

    def _check_end(self) -> None:
        """Raise `CallFailed` unless the call ended well."""
        code = self._trailers.get("grpc-status", "")
        if not (code.isascii() and code.isdigit()):
            raise CallFailed(CallStatus.UNKNOWN, "the call ended without a status")
        status = _status(int(code))
        if status is not CallStatus.OK:
            from urllib.parse import unquote  # most calls end well

            words = unquote(self._trailers.get("grpc-message", ""), errors="replace")
            raise CallFailed(status, words, self._trailers)
        if self._body:
            raise CallFailed(CallStatus.INTERNAL, "a reply is cut off")

    def _lost(self, why: str) -> CallFailed:
        if self._cancelled:
            return CallFailed(CallStatus.CANCELLED, "the call was cancelled")
        return CallFailed(CallStatus.UNAVAILABLE, why)


def _status(code: int) -> CallStatus:
    try:
        return CallStatus(code)
    except ValueError:
        return CallStatus.UNKNOWN


def timeout_words(seconds: float) -> str:
    """Write a time as the header ``grpc-timeout`` has it: at most eight digits and a unit, rounded up."""
    for unit, per_s in (("m", 1000), ("S", 1), ("M", 1 / 60), ("H", 1 / 3600)):
        count = max(1, -int(-seconds * per_s // 1))
        if count < 10**8:
            return f"{count}{unit}"
    return f"{10**8 - 1}H"


def _unpadded(flags: int, payload: bytes) -> bytes:
    """Return the payload without its padding. Raises ValueError if there is less than the padding."""
    if not flags & frames.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ValueError("a frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]
