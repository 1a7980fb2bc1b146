"""The standard input of an attempt's process: a pipe, and what comes over a socket for it.

The pipe is closed when the end of the input has been said, and never because a feeder is gone, or the supervisor: half
of the input must not be taken for all of it. A feeder is told how much the attempt has, and goes on from there; the
last one to come is the one that counts. No more is read from it than one packet, which waits here until the pipe has
room.

Packets, from the feeder: `d` and bytes of the input, or `e`, its end. To it JSON: `taken`, how many bytes the attempt
has; `over`, that no more are wanted.
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
from ebbtide_agent.helper.forking import Forked

PACKET_BYTES: Final = 64 * 1024
"""Of the input, in one packet at most."""
LOST_S: Final = 90.0
"""How long nobody may feed it before the attempt fails: half a minute more than `ebb run` tries to come back."""


class InputPipe:
    """The pipe whose one end is a process's standard input.

    A process of its own has the other end open as well, until it is closed here: else it would be closed by the death
    of this process, which says nothing of the input.
    """

    def __init__(self, account: Account | None) -> None:
        """`account` is the one that the process runs as: it may open its own input anew. Raises OSError."""
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.writer, False)
        if account is not None:
            os.fchown(self.reader, account.uid, account.gid)

    def handed_over(self) -> None:
        """The process has its end: this one keeps the other. Raises OSError."""
        os.close(self.reader)
        self._guard = Forked(lambda parent: _guard(self.writer))

    def close(self) -> None:
        """This is the end of the input."""
        os.close(self.writer)
        self._guard.kill()
        self._guard.close()


def _guard(writer: int) -> None:
    """Have it open until nobody has the other end."""
    detach({writer})
    _until_nobody_reads(writer, None)


def _until_nobody_reads(writer: int, within_ms: int | None) -> bool:
    """Whether all who could read the pipe have closed it in time."""
    asked = select.poll()
    asked.register(writer, 0)
    return bool(asked.poll(within_ms))


class StandardInput:
    """Takes the input in, and passes it on as fast as it is read."""

    def __init__(
        self, selector: selectors.BaseSelector, listener: socket.socket, pipe: InputPipe, lost_s: float = LOST_S
    ) -> None:
        self._selector = selector
        self._listener = listener
        self._input = pipe
        self._pipe = pipe.writer
        self._lost_s = lost_s
        self._feeder: socket.socket | None = None
        self._news = select.epoll()  # of the feeder: while something waits, only that it is gone
        self._waiting = b""  # for room in the pipe
        self._taken = 0
        self._over = False  # the pipe is closed
        self.lost_at = time.monotonic() + lost_s
        """When the input counts as lost, by the monotonic clock."""
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._admit)
        selector.register(self._news, selectors.EVENT_READ, self._hear)

    def failure(self, now: float) -> str:
        """Why the attempt cannot have all of its input any more, in words; empty if it can, or does not want it."""
        if now < self.lost_at:
            return ""
        self.lost_at = math.inf
        if _until_nobody_reads(self._pipe, 0):
            self._finish()
            return ""
        lost = f"its standard input was lost after {self._taken} bytes, before its end"
        return f"{lost}: none was sent for {self._lost_s:g} s"

    def close(self) -> None:
        """No process of the attempt is left."""
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
        """What the feeder has sent and was not read yet does not count: whoever comes next sends it again."""
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

    def _hear(self) -> None:
        if self._feeder is None:
            return  # gone in the same round
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
        except OSError:  # nobody reads it any more, as after `head -1`
            self._finish()
            return
        if not self._waiting:
            self._selector.unregister(self._pipe)
            self._listen()
            self._tell()

    def _listen(self) -> None:
        """Hear of what the feeder sends, or while something waits only that it is gone."""
        if self._feeder is not None:
            self._news.modify(self._feeder, self._wanted())

    def _finish(self) -> None:
        """Close the pipe: its reader has all, or is gone."""
        if self._over:
            return
        if self._waiting:
            self._selector.unregister(self._pipe)
        self._input.close()
        self._waiting, self._over, self.lost_at = b"", True, math.inf
        self._listen()
        self._tell()

    def _tell(self) -> None:
        """Whoever does not listen is gone; who comes next is told all the same."""
        if self._feeder is not None:
            try:
                self._feeder.send(json.dumps({"taken": self._taken, "over": self._over}).encode())
            except OSError:
                self._lose()
