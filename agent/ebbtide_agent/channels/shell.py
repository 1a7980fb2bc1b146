"""Owns a terminal with a shell on it, which a user can leave and come back to.

It is an attempt's first process and listens at a socket that the supervisor hands it. One connection at a time is
attached to the terminal; a new one replaces it and gets the last output, which is kept. This runs in the job's
environment, so it is started without site-packages and imports the standard library only.

A packet is a letter and its content: from the client `d` input, `w` ROWS COLUMNS; to it `d` output, `x` EXIT CODE.
"""

import fcntl
import os
import pty
import selectors
import signal
import socket
import struct
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

KEPT_BYTES: Final = 64 * 1024
PACKET_BYTES: Final = 16 * 1024
_LAST_WORDS_S = 2.0


class ShellSession:
    """Serves one shell on its terminal."""

    def __init__(self, listener: socket.socket, command: Sequence[str]) -> None:
        self._wakeup = _signal_pipe()
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            _become(command)
        os.set_blocking(self._terminal, False)
        self._listener = listener
        self._client: socket.socket | None = None
        self._kept = bytearray()
        self._to_shell = b""
        self._to_client: list[bytes] = []
        self._deserted = False  # no process has the terminal open
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Serve until the shell has ended. Return its exit code, 128 plus the number of a signal that ended it."""
        while (code := self._ended()) is None:
            self._await()
            for key, events in self._selector.select():
                key.data(events)
        self._say_goodbye(code)
        return code

    def _ended(self) -> int | None:
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            return 1
        if pid == 0:
            return None
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def _await(self) -> None:
        """Watch the descriptors that can be served; nothing is read from a side while the other does not read."""
        wanted: dict[int, tuple[object, int]] = {
            self._wakeup: (self._hear_signal, selectors.EVENT_READ),
            self._listener.fileno(): (self._attach, selectors.EVENT_READ),
        }
        terminal = selectors.EVENT_WRITE if self._to_shell else 0
        terminal |= 0 if self._to_client or self._deserted else selectors.EVENT_READ
        if terminal:
            wanted[self._terminal] = (self._serve_terminal, terminal)
        if self._client is not None:
            client = selectors.EVENT_WRITE if self._to_client else 0
            client |= 0 if self._to_shell else selectors.EVENT_READ
            wanted[self._client.fileno()] = (self._serve_client, client)
        self._selector.close()
        self._selector = selectors.DefaultSelector()
        for descriptor, (serve, events) in wanted.items():
            if events:
                self._selector.register(descriptor, events, serve)

    def _hear_signal(self, events: int) -> None:
        """Hang up on the terminal's processes after a signal to end; SIGCHLD only wakes the loop."""
        if any(signum != signal.SIGCHLD for signum in os.read(self._wakeup, 4096)):
            for group in {os.tcgetpgrp(self._terminal), self._pid}:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGHUP)
                    os.killpg(group, signal.SIGCONT)

    def _attach(self, events: int) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            client, _ = self._listener.accept()
            client.setblocking(False)
            self._detach()
            self._client = client
            kept = bytes(self._kept)
            self._to_client = [kept[start : start + PACKET_BYTES] for start in range(0, len(kept), PACKET_BYTES)]

    def _detach(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client, self._to_client = None, []

    def _serve_terminal(self, events: int) -> None:
        if events & selectors.EVENT_READ:
            self._show(self._read())
        if events & selectors.EVENT_WRITE:
            with suppress(OSError):
                self._to_shell = self._to_shell[os.write(self._terminal, self._to_shell) :]

    def _read(self) -> bytes:
        try:
            return os.read(self._terminal, PACKET_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            self._deserted = True
            return b""

    def _show(self, data: bytes) -> None:
        self._kept += data
        del self._kept[:-KEPT_BYTES]
        if data and self._client is not None:
            self._to_client.append(data)
            self._serve_client(selectors.EVENT_WRITE)

    def _serve_client(self, events: int) -> None:
        client = self._client
        if client is None:
            return  # detached in the same round
        try:
            while events & selectors.EVENT_WRITE and self._to_client:
                client.send(b"d" + self._to_client[0])
                del self._to_client[0]
            if events & selectors.EVENT_READ:
                self._obey(client.recv(PACKET_BYTES + 1))
        except BlockingIOError:
            pass
        except OSError:
            self._detach()

    def _obey(self, packet: bytes) -> None:
        match packet[:1]:
            case b"":
                self._detach()
            case b"d":
                self._to_shell += packet[1:]
            case b"w":
                with suppress(ValueError, OSError, struct.error):
                    rows, columns = packet[1:].split()
                    size = struct.pack("HHHH", int(rows), int(columns), 0, 0)
                    fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def _say_goodbye(self, code: int) -> None:
        while data := self._read():
            self._show(data)
        if self._client is not None:
            self._client.settimeout(_LAST_WORDS_S)
            with suppress(OSError):
                for data in self._to_client:
                    self._client.send(b"d" + data)
                self._client.send(b"x%d" % code)
            self._client.close()


def _become(command: Sequence[str]) -> None:
    """Run the command in the child, which has the terminal, or print why it cannot be run."""
    try:
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGINT):
            signal.signal(signum, signal.SIG_DFL)
        os.execvpe(command[0], list(command), os.environ)
    except OSError as error:
        print(f"ebb: {command[0]}: {error.strerror}\r")  # noqa: T201
        os._exit(127)


def _signal_pipe() -> int:
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, lambda signum, frame: None)
    return readable


def _listener() -> socket.socket:
    """Return the socket that the supervisor made, which listens and does not block; the shell does not inherit it."""
    listener = socket.socket(fileno=int(os.environ.pop("EBB_SESSION")))
    os.set_inheritable(listener.fileno(), False)
    return listener


def main(command: Sequence[str]) -> int:
    """Run ``command`` on a terminal that clients can attach to, and return its exit code."""
    os.environ.setdefault("TERM", "xterm-256color")
    return ShellSession(_listener(), command).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
