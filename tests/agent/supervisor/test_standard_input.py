"""The standard input of an attempt, between its feeder and the pipe: one packet is held, and no end is made up."""

import json
import os
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ebbtide_agent.helper import forking
from ebbtide_agent.helper.confining import HELPER
from ebbtide_agent.processes import procfs
from ebbtide_agent.supervisor.streams.standard_input import PACKET_BYTES, InputPipe, StandardInput

LOST_S = 5.0
PIPE_BYTES = 64 * 1024


class Attempt:
    """The supervisor's part of it, and the process's end of the pipe."""

    def __init__(self, selector: selectors.BaseSelector, path: Path) -> None:
        self._path = str(path / "input.sock")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self._path)
        self._listener.listen()
        self._selector = selector
        pipe, known = InputPipe(None), forking.unreaped()
        self.reader = os.dup(pipe.reader)
        pipe.handed_over()
        [self.guard] = forking.unreaped() - known
        while (stat := procfs.read_stat(self.guard)) is None or stat.command != HELPER:
            time.sleep(0.001)  # until then it has the reader open, too, which no supervisor has
        self.input = StandardInput(selector, self._listener, pipe, LOST_S)

    def step(self) -> None:
        """Serve whoever waits, until nobody does."""
        while found := self._selector.select(0):
            for key, _ in found:
                key.data()

    def feeder(self) -> socket.socket:
        feeder = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        feeder.setblocking(False)
        feeder.connect(self._path)
        self.step()
        return feeder

    def give(self, feeder: socket.socket, packet: bytes) -> None:
        feeder.send(packet)
        self.step()

    def read(self, count: int) -> bytes:
        data = os.read(self.reader, count)
        self.step()
        return data

    def leave(self) -> None:
        """The process closes its input."""
        os.close(self.reader)
        self.reader = -1


@contextmanager
def an_attempt(path: Path) -> Iterator[Attempt]:
    with selectors.DefaultSelector() as selector:
        attempt = Attempt(selector, path)
        try:
            yield attempt
            attempt.input.close()
            assert not selector.get_map()
        finally:
            if attempt.reader >= 0:
                os.close(attempt.reader)
            os.waitpid(attempt.guard, 0)
            forking.note_reaped(attempt.guard)


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    with an_attempt(tmp_path) as attempt:
        yield attempt


def told(feeder: socket.socket) -> tuple[int, bool]:
    """What the feeder was told last: how much is taken, and whether no more is wanted."""
    last = b""
    try:
        while answer := feeder.recv(4096):
            last = answer
    except BlockingIOError:
        pass
    content = json.loads(last)
    return content["taken"], content["over"]


def test_the_end_is_what_was_said_to_be_it_and_not_the_end_of_a_connection(attempt: Attempt) -> None:
    with attempt.feeder() as first:
        attempt.give(first, b"dab")
        assert told(first) == (2, False)
    attempt.step()
    assert attempt.read(10) == b"ab"
    os.set_blocking(attempt.reader, False)
    with pytest.raises(BlockingIOError):
        attempt.read(10)
    with attempt.feeder() as second:
        assert told(second) == (2, False)
        attempt.give(second, b"dc")
        attempt.give(second, b"e")
        assert told(second) == (3, True)
    os.set_blocking(attempt.reader, True)
    assert attempt.read(10) == b"c"
    assert attempt.read(10) == b""


def test_one_packet_is_taken_from_whoever_feeds_a_process_that_does_not_read(attempt: Attempt) -> None:
    with attempt.feeder() as feeder:
        attempt.give(feeder, b"d" + bytes(PIPE_BYTES))
        assert told(feeder) == (PIPE_BYTES, False)
        attempt.give(feeder, b"d" + b"x" * 10)
        attempt.give(feeder, b"d" + b"y" * 10)
        with pytest.raises(BlockingIOError):
            feeder.recv(4096)  # the pipe is full: nothing more is acknowledged
        with attempt.feeder() as second:
            assert told(second) == (PIPE_BYTES + 10, False)  # `y` was not taken: it is to be sent again
            attempt.give(second, b"d" + b"y" * 10)
            attempt.give(second, b"e")
            assert attempt.read(PIPE_BYTES) == bytes(PIPE_BYTES)
            assert told(second) == (PIPE_BYTES + 20, True)
            assert attempt.read(100) == b"x" * 10 + b"y" * 10
            assert attempt.read(100) == b""


def test_who_takes_the_place_of_another_is_the_only_one_heard(attempt: Attempt) -> None:
    with attempt.feeder() as first, attempt.feeder() as second:
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            first.send(b"dlate")
        attempt.give(second, b"dgood")
        assert attempt.read(10) == b"good"


def test_an_input_that_nobody_feeds_is_lost_after_a_while_and_not_before(attempt: Attempt) -> None:
    began = time.monotonic()
    assert attempt.input.failure(attempt.input.lost_at - 1.0) == ""
    with attempt.feeder() as feeder:
        assert attempt.input.failure(began + 1000.0) == ""
        attempt.give(feeder, b"dabc")
    attempt.step()
    gone = time.monotonic()
    assert attempt.input.failure(gone + LOST_S - 1.0) == ""
    words = "its standard input was lost after 3 bytes, before its end: none was sent for 5 s"
    assert attempt.input.failure(gone + LOST_S) == words
    assert attempt.read(10) == b"abc"
    os.set_blocking(attempt.reader, False)
    with pytest.raises(BlockingIOError):
        attempt.read(10)


def test_it_is_noticed_that_a_feeder_is_gone_while_the_pipe_is_full(attempt: Attempt) -> None:
    with attempt.feeder() as feeder:
        attempt.give(feeder, b"d" + bytes(PIPE_BYTES))
        attempt.give(feeder, b"dx")
    attempt.step()
    assert attempt.input.lost_at <= time.monotonic() + LOST_S


def test_what_nobody_reads_is_not_lost_and_no_more_of_it_is_wanted(attempt: Attempt) -> None:
    with attempt.feeder() as feeder:
        attempt.give(feeder, b"dabc")
        attempt.leave()
        attempt.give(feeder, b"dabc")
        assert told(feeder)[1]
    attempt.step()
    assert attempt.input.failure(time.monotonic() + 1000.0) == ""
    with attempt.feeder() as late:
        assert told(late)[1]
        attempt.give(late, b"dabc")  # it had not heard yet


def test_a_process_that_closed_its_input_does_not_miss_a_feeder(attempt: Attempt) -> None:
    attempt.leave()
    assert attempt.input.failure(time.monotonic() + 1000.0) == ""
    with attempt.feeder() as late:
        assert told(late) == (0, True)


@pytest.mark.parametrize("packet", [b"d", b"?", b"d" + bytes(PACKET_BYTES + 1)], ids=["empty", "unknown", "too long"])
def test_a_packet_that_is_none_ends_the_connection_and_not_the_input(attempt: Attempt, packet: bytes) -> None:
    with attempt.feeder() as feeder:
        attempt.give(feeder, packet)
        assert feeder.recv(4096)
        assert feeder.recv(4096) == b""
    with attempt.feeder() as feeder:
        assert told(feeder) == (0, False)
