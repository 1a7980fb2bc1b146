"""Pass standard input to an attempt's process: from a feeder, which connects to a socket, into a pipe.

The pipe is closed when the feeder has sent the end of the input, and never because the feeder or the supervisor is
gone: half of the input must not be taken for all of it. A feeder is told how much the attempt has, and goes on from
there; a new feeder replaces the one before. Only one packet is read from the feeder at a time, and waits here until the
pipe has room.

Packets from the feeder: `d` and bytes of the input, or `e`, its end. JSON to the feeder: `taken`, how many bytes the
attempt has; `over`, that no more are wanted.
"""

import json
import math
import os
import select
import selectors
import socket
import time
from contextlib import suppress
from typing import Final

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.helper.confining import detach
from ebbtide_agent.helper.forking import ForkedProcess

PACKET_BYTES: Final = 64 * 1024
"""The most bytes of the input in one packet."""
LOST_S: Final = 90.0
"""Seconds without a feeder after which the attempt fails: half a minute more than `ebb run` tries to reconnect."""


class InputPipe:
    """The pipe whose read end is a process's standard input.

    A guard process keeps the write end open too, until it is closed here. Otherwise the death of this process, which
    says nothing of the input, would close it.
    """

    def __init__(self, account: Account | None) -> None:
        """`account` is the one that the process runs as; it may open its own input again. Raises OSError."""
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.writer, False)
        if account is not None:
            os.fchown(self.reader, account.uid, account.gid)

    def handed_over(self) -> None:
        """Close the read end, which the process has now, and start the guard. Raises OSError."""
        os.close(self.reader)
        self._guard = ForkedProcess(lambda parent: _guard(self.writer))

    def close(self) -> None:
        """End the input: close the write end, and end the guard."""
        os.close(self.writer)
        self._guard.kill()
        self._guard.close()


def _guard(writer: int) -> None:
    """Keep the write end open until no process has the read end."""
    detach({writer})
    _until_nobody_reads(writer, None)


def _until_nobody_reads(writer: int, within_ms: int | None) -> bool:
    """Wait until no process has the read end, at most `within_ms`, and return whether that came in time."""
    asked = select.poll()
    asked.register(writer, 0)
    return bool(asked.poll(within_ms))


class StandardInput:
    """Takes the input from a feeder, and passes it on as fast as the process reads it."""

    def __init__(
        self, selector: selectors.BaseSelector, listener: socket.socket, pipe: InputPipe, lost_s: float = LOST_S
    ) -> None:
        self._selector = selector
        self._listener = listener
        self._input = pipe
        self._pipe = pipe.writer
        self._lost_s = lost_s
        self._feeder: socket.socket | None = None
        self._news = select.epoll()  # events of the feeder: its packets, or while one waits only that it is gone
        self._waiting = b""  # bytes that wait for room in the pipe
        self._taken = 0
        self._over = False  # the pipe is closed
        self.lost_at = time.monotonic() + lost_s
        """When the input counts as lost, on the monotonic clock."""
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._admit)
        selector.register(self._news, selectors.EVENT_READ, self._receive)

    def failure(self, now: float) -> str:
        """Return why the attempt can no longer have all of its input; empty if it can, or does not read it any more."""
        if now < self.lost_at:
            return ""
        self.lost_at = math.inf
        if _until_nobody_reads(self._pipe, 0):
            self._finish()
            return ""
        lost = f"its standard input was lost after {self._taken} bytes, before its end"
        return f"{lost}: none was sent for {self._lost_s:g} s"

    def close(self) -> None:
        """Close everything, when no process of the attempt is left."""
        self._dismiss()
        self._finish()
        for source in (self._listener, self._news):
            self._selector.unregister(source)
            source.close()

    def _admit(self) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            feeder, _ = self._listener.accept()
            feeder.setblocking(False)
            self._dismiss()
            self._feeder, self.lost_at = feeder, math.inf
            self._news.register(feeder, self._wanted())
            self._tell()

    def _dismiss(self) -> None:
        """Close the feeder's connection. Packets that were not read do not count: the next feeder sends them again."""
        if self._feeder is not None:
            self._news.unregister(self._feeder)
            self._feeder.close()
        self._feeder = None

    def _lose(self) -> None:
        self._dismiss()
        if not self._over:
            self.lost_at = time.monotonic() + self._lost_s

    def _wanted(self) -> int:
        return select.EPOLLRDHUP if self._waiting else select.EPOLLIN

    def _receive(self) -> None:
        if self._feeder is None:
            return  # the feeder was dismissed in the same round
        if self._waiting:
            self._lose()
            return
        try:
            packet = self._feeder.recv(PACKET_BYTES + 2)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        match packet[:1]:
            case b"d" if 1 < len(packet) <= PACKET_BYTES + 1:
                self._take(packet[1:])
            case b"e":
                self._finish()
            case _:
                self._lose()

    def _take(self, data: bytes) -> None:
        if not self._over:
            self._taken += len(data)
            self._waiting = data
            self._selector.register(self._pipe, selectors.EVENT_WRITE, self._pass_on)
            self._listen()

    def _pass_on(self) -> None:
        try:
            self._waiting = self._waiting[os.write(self._pipe, self._waiting) :]
        except BlockingIOError:
            return
        except OSError:  # no process reads the pipe any more, as after `head -1`
            self._finish()
            return
        if not self._waiting:
            self._selector.unregister(self._pipe)
            self._listen()
            self._tell()

    def _listen(self) -> None:
        """Wait for the feeder's packets, or while one waits here only for the feeder's end."""
        if self._feeder is not None:
            self._news.modify(self._feeder, self._wanted())

    def _finish(self) -> None:
        """Close the pipe, because its reader has all of the input, or is gone."""
        if self._over:
            return
        if self._waiting:
            self._selector.unregister(self._pipe)
        self._input.close()
        self._waiting, self._over, self.lost_at = b"", True, math.inf
        self._listen()
        self._tell()

    def _tell(self) -> None:
        """Tell the feeder what the attempt has. A feeder that cannot be told is gone; the next one is told at once."""
        if self._feeder is not None:
            try:
                self._feeder.send(json.dumps({"taken": self._taken, "over": self._over}).encode())
            except OSError:
                self._lose()
