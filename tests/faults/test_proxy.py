"""A line that goes bad does so as it was told to."""

import contextlib
import random
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import wait_for
from tests.faults.proxy import Cut, Delay, Hold, Pass, Proxy, Swallow, Way


@contextlib.contextmanager
def an_echo() -> Iterator[tuple[str, int]]:
    """A server that says again what it is told."""

    def say_again(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(4096):
                connection.sendall(data)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                thread = threading.Thread(target=say_again, args=(connection,))
                threads.append(thread)
                thread.start()

    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepting = threading.Thread(target=serve)
        accepting.start()
        yield server.getsockname()
        server.shutdown(socket.SHUT_RDWR)
    for thread in (accepting, *threads):
        thread.join(10)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """One before an echo."""
    with an_echo() as address, Proxy(lambda: address) as proxy:
        yield proxy


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def say(line: socket.socket, text: bytes) -> bytes:
    line.sendall(text)
    return line.recv(4096)


def hears_nothing(line: socket.socket) -> bool:
    line.settimeout(0.1)
    try:
        line.recv(1)
    except TimeoutError:
        return True
    finally:
        line.settimeout(10)
    return False


def is_reset(line: socket.socket) -> bool:
    try:
        line.recv(1)
    except ConnectionResetError:
        return True
    return False


def is_refused(proxy: Proxy) -> bool:
    """Whether who connects is reset, be it before they know that they are connected."""
    try:
        with connect(proxy) as line:
            return is_reset(line)
    except ConnectionResetError:
        return True


def said_before_the_reset(line: socket.socket) -> bytes:
    got = b""
    while True:
        try:
            got += line.recv(4096)
        except ConnectionResetError:
            return got


def test_what_is_said_arrives_and_so_does_the_end(proxy: Proxy) -> None:
    with connect(proxy) as line:
        assert say(line, b"one") == b"one"
        line.shutdown(socket.SHUT_WR)
        assert line.recv(1) == b""


def test_a_large_message_arrives_whole(proxy: Proxy) -> None:
    message = random.Random(1).randbytes(3 << 20)
    with connect(proxy) as line:
        sending = threading.Thread(target=line.sendall, args=(message,))
        sending.start()
        got = bytearray()
        while len(got) < len(message):
            got += line.recv(1 << 16)
        sending.join()
    assert bytes(got) == message


@pytest.mark.parametrize("ways", [(Way.ONWARD,), (Way.BACK,), tuple(Way)])
def test_a_line_that_holds_delivers_when_it_is_mended(proxy: Proxy, ways: tuple[Way, ...]) -> None:
    with connect(proxy) as line:
        assert say(line, b"one") == b"one"
        proxy.set(Hold(), *ways)
        line.sendall(b"two")
        assert hears_nothing(line)
        proxy.heal()
        assert line.recv(4096) == b"two"


@pytest.mark.parametrize("way", list(Way))
def test_a_line_that_swallows_is_reset_when_it_is_mended(proxy: Proxy, way: Way) -> None:
    with connect(proxy) as line:
        assert say(line, b"one") == b"one"
        proxy.set(Swallow(), way)
        line.sendall(b"two")
        wait_for("it is swallowed", lambda: proxy.has_swallowed)
        assert hears_nothing(line)
        proxy.heal()
        assert is_reset(line)


def test_a_line_that_lost_nothing_goes_on(proxy: Proxy) -> None:
    with connect(proxy) as line:
        assert say(line, b"one") == b"one"
        proxy.set(Swallow())
        proxy.set(Pass())
        assert say(line, b"two") == b"two"


def test_who_is_refused_is_reset_and_who_is_there_stays(proxy: Proxy) -> None:
    with connect(proxy) as line:
        assert say(line, b"one") == b"one"
        proxy.refuse()
        assert is_refused(proxy)
        assert say(line, b"two") == b"two"
        proxy.refuse(False)
        with connect(proxy) as other:
            assert say(other, b"three") == b"three"


def test_dropping_resets_who_is_there_only(proxy: Proxy) -> None:
    with connect(proxy) as line:
        assert say(line, b"one") == b"one"
        proxy.drop()
        assert is_reset(line)
    with connect(proxy) as line:
        assert say(line, b"two") == b"two"


def test_a_cut_lets_so_many_bytes_through(proxy: Proxy) -> None:
    with connect(proxy) as line:
        proxy.set(Cut(5), Way.BACK)
        assert say(line, b"one") == b"one"
        line.sendall(b"two")
        got = said_before_the_reset(line)
        assert b"tw".startswith(got)  # a reset may overtake what is not read yet


def test_what_is_delayed_keeps_its_order(proxy: Proxy) -> None:
    proxy.set(Delay(0.0, 0.01))
    text = bytes(range(100))
    with connect(proxy) as line:
        for byte in text:
            line.sendall(bytes([byte]))
        got = b""
        while len(got) < len(text):
            got += line.recv(4096)
    assert got == text


def test_who_connects_to_nobody_is_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = server.getsockname()
    with Proxy(lambda: nobody) as proxy:
        assert is_refused(proxy)
