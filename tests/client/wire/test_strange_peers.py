"""A call to peers that a test wrote frame by frame: what HTTP/2 allows is understood, all else is one failure."""

import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from ebbtide_cli.wire import frames
from ebbtide_cli.wire.call import WINDOW, Call
from ebbtide_cli.wire.frames import frame
from ebbtide_cli.wire.hpack import encoded
from ebbtide_cli.wire.status import CallFailed, CallStatus

SETTINGS = frames.settings({})
OPENED = frame(
    frames.HEADERS, frames.END_HEADERS, 1, encoded([(":status", "200"), ("content-type", "application/grpc")])
)
END = frames.END_HEADERS | frames.END_STREAM


def trailers(status: int | str = 0, words: str = "") -> bytes:
    return frame(frames.HEADERS, END, 1, encoded([("grpc-status", str(status)), ("grpc-message", words)]))


def message(text: bytes) -> bytes:
    return b"\0" + frames.number(len(text)) + text


def data(text: bytes, flags: int = 0) -> bytes:
    return frame(frames.DATA, flags, 1, text)


WHOLE = SETTINGS + OPENED + data(message(b"one")) + data(message(b"two")) + trailers()


@contextmanager
def peer(does: Callable[[socket.socket], None], timeout: float = 20) -> Iterator[Call]:
    """A call to a peer that does this with its end of the connection."""
    ours, theirs = socket.socketpair()

    def act() -> None:
        with theirs:
            does(theirs)

    acting = threading.Thread(target=act)
    acting.start()
    call = Call(ours, timeout)
    try:
        yield call
    finally:
        call.close()
        acting.join(20)


def says(answer: bytes, at_once: int = 1 << 20) -> Callable[[socket.socket], None]:
    """Answer so, in pieces, and hang up."""

    def answering(connection: socket.socket) -> None:
        connection.recv(65536)
        with suppress(ConnectionError):  # the call has heard enough
            for at in range(0, len(answer), at_once):
                connection.sendall(answer[at : at + at_once])
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass

    return answering


def replies(answer: bytes, at_once: int = 1 << 20) -> list[bytes]:
    with peer(says(answer, at_once)) as call:
        return list(call.replies("/ebbtide.v1.ClientService/ShowJob", (), (b"asked",)))


def failure(answer: bytes) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        replies(answer)
    return caught.value


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_an_answer_may_arrive_in_any_pieces(at_once):
    assert replies(WHOLE, at_once) == [b"one", b"two"]


PADDED = frames.PADDED
FIRST = encoded([(":status", "200"), ("content-type", "application/grpc+proto")])


@pytest.mark.parametrize(
    "answer",
    [
        SETTINGS + OPENED + data(b"\x03" + message(b"one") + b"\0\0\0", PADDED) + data(message(b"two")) + trailers(),
        SETTINGS + OPENED + data(message(b"one")[:2]) + data(message(b"one")[2:] + message(b"two")) + trailers(),
        SETTINGS + OPENED + data(b"") + data(message(b"one") + message(b"two")) + trailers(),
        frame(frames.HEADERS, 0, 1, FIRST[:5])
        + frame(frames.CONTINUATION, 0, 1, FIRST[5:9])
        + frame(frames.CONTINUATION, frames.END_HEADERS, 1, FIRST[9:])
        + data(message(b"one") + message(b"two"))
        + trailers(),
        frame(
            frames.HEADERS, frames.END_HEADERS | frames.PRIORITY | PADDED, 1, b"\x02" + b"\0\0\0\0\7" + FIRST + b"\0\0"
        )
        + data(message(b"one") + message(b"two"))
        + trailers(),
        frame(77, 255, 5, b"a kind that a later version may have") + WHOLE,
        frame(frames.GOAWAY, 0, 0, frames.number(frames.MAX_WINDOW) + frames.number(0) + b"soon") + WHOLE,
        WHOLE + frame(frames.RST_STREAM, 0, 1, frames.number(0)) + b"and more that nobody reads",
        frame(frames.RST_STREAM, 0, 3, frames.number(2)) + WHOLE,
        SETTINGS + OPENED.replace(b"\x03200", b"\x03200") + data(message(b"one") + message(b"two")) + trailers("00"),
    ],
)
def test_whatever_http2_allows_is_understood(answer):
    assert replies(answer) == [b"one", b"two"]


def http(status: str, kind: str = "text/html") -> bytes:
    return SETTINGS + frame(frames.HEADERS, END, 1, encoded([(":status", status), ("content-type", kind)]))


def reset(code: int) -> bytes:
    return SETTINGS + frame(frames.RST_STREAM, 0, 1, frames.number(code))


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (b"", CallStatus.UNAVAILABLE, "the connection ended"),
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", CallStatus.UNAVAILABLE, "speaks no gRPC: a frame has 4740180 bytes"),
        (SETTINGS + OPENED + data(message(b"one"))[:-1], CallStatus.UNAVAILABLE, "the connection ended"),
        (SETTINGS + OPENED + data(message(b"one")), CallStatus.UNAVAILABLE, "the connection ended"),
        (SETTINGS + OPENED + data(message(b"one"), frames.END_STREAM), CallStatus.UNKNOWN, "without a status"),
        (SETTINGS + OPENED + data(message(b"one")[:-1]) + trailers(), CallStatus.INTERNAL, "a reply is cut off"),
        (SETTINGS + OPENED + data(b"\1\0\0\0\1x") + trailers(), CallStatus.INTERNAL, "a reply is compressed"),
        (SETTINGS + data(message(b"one")), CallStatus.UNAVAILABLE, "a message comes before the headers"),
        (SETTINGS + OPENED + OPENED, CallStatus.UNAVAILABLE, "headers come twice"),
        (SETTINGS + OPENED + trailers("none"), CallStatus.UNKNOWN, "without a status"),
        (SETTINGS + OPENED + trailers("²"), CallStatus.UNKNOWN, "without a status"),
        (SETTINGS + OPENED + trailers(77, "new"), CallStatus.UNKNOWN, "new"),
        (SETTINGS + OPENED + trailers(5, "no%20job%2"), CallStatus.NOT_FOUND, "no job%2"),
        (SETTINGS + OPENED + trailers(5, "%ff%00"), CallStatus.NOT_FOUND, "\ufffd\0"),
        (http("502"), CallStatus.UNAVAILABLE, "HTTP status 502"),
        (http("418"), CallStatus.UNKNOWN, "HTTP status 418"),
        (http("200"), CallStatus.UNKNOWN, "text/html"),
        (http("103"), CallStatus.UNAVAILABLE, "HTTP status 103"),
        (reset(7), CallStatus.UNAVAILABLE, "HTTP/2's error 7"),
        (reset(8), CallStatus.CANCELLED, "HTTP/2's error 8"),
        (reset(11), CallStatus.RESOURCE_EXHAUSTED, "HTTP/2's error 11"),
        (reset(12), CallStatus.PERMISSION_DENIED, "HTTP/2's error 12"),
        (reset(2), CallStatus.INTERNAL, "HTTP/2's error 2"),
        (frame(frames.GOAWAY, 0, 0, bytes(8) + b"too many"), CallStatus.UNAVAILABLE, "too many"),
        (frame(frames.GOAWAY, 0, 0, b""), CallStatus.UNAVAILABLE, "it takes no calls"),
        (frame(frames.PUSH_PROMISE, 0, 1, bytes(4)), CallStatus.UNAVAILABLE, "a frame of kind 5"),
        (frame(frames.CONTINUATION, 4, 1, b""), CallStatus.UNAVAILABLE, "a frame of kind 9"),
        (frame(frames.SETTINGS, 0, 0, b"\0\1\0"), CallStatus.UNAVAILABLE, "a setting is cut off"),
        (SETTINGS + OPENED + data(b"\x05ab", PADDED), CallStatus.UNAVAILABLE, "more padding than bytes"),
        (frame(frames.HEADERS, 0, 1, FIRST) + SETTINGS, CallStatus.UNAVAILABLE, "not continued as they should be"),
        (frame(frames.HEADERS, END, 1, b"\xff\xff\xff\xff\xff\xff"), CallStatus.UNAVAILABLE, "too many digits"),
        (frame(frames.HEADERS, 0, 1) + frame(9, 0, 1, bytes(16384)) * 70, CallStatus.UNAVAILABLE, "not continued"),
    ],
)  # fmt: skip
def test_whatever_else_comes_is_one_failure_that_says_what_came(answer, status, words):
    failed = failure(answer)
    assert failed.status is status
    assert words in failed.words


def test_no_bytes_make_more_than_a_failure_of_a_call():
    """Each answer is a good one with a few bytes changed, dropped or doubled."""
    chance = random.Random(7)
    kinds = set()
    for _ in range(1500):
        answer = bytearray(WHOLE)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(answer))
            match chance.randrange(4):
                case 0:
                    answer[at] = chance.randrange(256)
                case 1:
                    del answer[at : at + chance.randint(1, 12)]
                case 2:
                    answer[at:at] = answer[at : at + chance.randint(1, 30)]
                case _:
                    answer[at] ^= 1 << chance.randrange(8)
        try:
            kinds.add(len(replies(bytes(answer))))
        except CallFailed as failed:
            kinds.add(failed.status.name)
    assert {2, "UNAVAILABLE", "UNKNOWN", "INTERNAL"} <= kinds


def test_a_ping_is_answered_with_its_own_bytes():
    answered = []

    def pinging(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(frame(frames.PING, 0, 0, b"12345678") + frame(frames.PING, frames.ACK, 0, b"87654321"))
        answered.append(connection.recv(17))
        connection.sendall(WHOLE)

    with peer(pinging) as call:
        assert list(call.replies("/path", (), (b"asked",))) == [b"one", b"two"]
    assert answered == [frame(frames.PING, frames.ACK, 0, b"12345678")]


def test_no_more_is_sent_than_a_peer_with_small_windows_takes():
    """The windows of the stream and of the connection count each on its own, and a setting may make one negative."""
    counts = []

    def stingy(connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            stream.read(len(frames.PREFACE))
            connection.sendall(frames.settings({frames.INITIAL_WINDOW_SIZE: 10}))
            sent = 0
            while sent < frames.FIRST_WINDOW:
                sent += _data_of(stream)
            counts.append(sent)
            assert _data_of(stream) == 0  # it acknowledges the settings, and then waits
            assert select.select([connection], [], [], 0.2) == ([], [], [])
            widened = frames.number(200_000)
            connection.sendall(frame(frames.WINDOW_UPDATE, 0, 0, widened) + frame(frames.WINDOW_UPDATE, 0, 1, widened))
            while sent < 100_005:
                sent += _data_of(stream)
            counts.append(sent)
            connection.sendall(WHOLE)

    with peer(stingy) as call:
        assert list(call.replies("/path", (), (b"x" * 100_000,))) == [b"one", b"two"]
    assert counts == [frames.FIRST_WINDOW, 100_005]


def _data_of(stream) -> int:
    """Read a frame; how many bytes of a message it has."""
    length, kind, _, _ = frames.read_head(stream.read(frames.HEAD_BYTES))
    stream.read(length)
    return length if kind == frames.DATA else 0


def test_a_peer_that_sends_all_it_may_is_told_when_it_may_go_on():
    pieces = 5 * WINDOW // frames.MAX_FRAME
    room = []

    def sending(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(SETTINGS + OPENED + data(b"\0" + frames.number(pieces * frames.MAX_FRAME)))
        window = WINDOW - 5
        with connection.makefile("rb") as stream:
            for _ in range(pieces):
                while window < frames.MAX_FRAME:
                    length, kind, _, on = frames.read_head(stream.read(frames.HEAD_BYTES))
                    payload = stream.read(length)
                    if kind == frames.WINDOW_UPDATE and on == 1:
                        window += int.from_bytes(payload, "big")
                connection.sendall(data(bytes(frames.MAX_FRAME)))
                window -= frames.MAX_FRAME
                room.append(window)
            connection.sendall(trailers())

    with peer(sending) as call:
        [reply] = call.replies("/path", (), (b"asked",))
    assert reply == bytes(pieces * frames.MAX_FRAME)
    assert min(room) >= 0
    assert max(room) <= WINDOW


def test_a_call_that_is_given_up_says_so_with_a_reset():
    last = []

    def listening(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(SETTINGS + OPENED + data(message(b"one")))
        told = b""
        while received := connection.recv(65536):
            told += received
        last.append(told[-13:])

    with peer(listening) as call:
        answers = call.replies("/path", (), (b"asked",))
        assert next(answers) == b"one"
    assert last == [frame(frames.RST_STREAM, 0, 1, frames.number(frames.CANCEL))]


@pytest.mark.parametrize("begun", [b"", SETTINGS[:5], SETTINGS + OPENED, SETTINGS + OPENED + data(message(b"one")[:3])])
def test_a_peer_that_falls_silent_is_waited_for_as_long_as_the_call_has(begun):
    def silent(connection: socket.socket) -> None:
        with suppress(ConnectionError):  # the call may be over before this was sent, or read
            connection.sendall(begun)
            while connection.recv(65536):
                pass

    began = time.monotonic()
    with peer(silent, timeout=0.2) as call, pytest.raises(CallFailed) as caught:
        list(call.replies("/path", (), (b"asked",)))
    assert caught.value.status is CallStatus.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 10


def test_what_a_peer_said_before_it_hung_up_is_read_though_it_hears_nothing_more():
    def refusing(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(SETTINGS + frame(frames.HEADERS, END, 1, FIRST + encoded([("grpc-status", "7")])))

    with peer(refusing) as call, pytest.raises(CallFailed) as caught:
        list(call.replies("/path", (), (b"x" * 60_000 for _ in range(1000))))
    assert caught.value.status is CallStatus.PERMISSION_DENIED
