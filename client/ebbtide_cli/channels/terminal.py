"""Connect this process's terminal to a channel: every key goes to the channel, except for the escapes."""

import asyncio
import os
import shutil
import signal
import sys
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from ebbtide_core.model import limits
from ebbtide_protos.threads import on_daemon_thread
from ebbtide_protos.v1 import channel_pb2

from ebbtide_cli import interrupts
from ebbtide_cli.channels.line import ClientChannel, write_all

ESCAPE: Final = ord("~")
LEAVE: Final = ord(".")
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_NEWLINES: Final = b"\r\n"


@dataclass(slots=True)
class Escapes:
    """Find ``~.`` at the beginning of a line, which leaves; ``~~`` there sends one ``~``. As in ssh."""

    _at_start: bool = field(default=True)
    _escaped: bool = field(default=False)

    def take(self, typed: bytes) -> tuple[bytes, bool]:
        """Return those of the typed bytes that are to be sent, and whether the user wants to leave."""
        out = bytearray()
        for key in typed:
            if self._escaped:
                self._escaped = False
                if key == LEAVE:
                    return bytes(out), True
                out += bytes((ESCAPE,)) if key == ESCAPE else bytes((ESCAPE, key))
                self._at_start = key in _NEWLINES
            elif key == ESCAPE and self._at_start:
                self._escaped = True
            else:
                out.append(key)
                self._at_start = key in _NEWLINES
        return bytes(out), False


def has_terminal() -> bool:
    """Whether both ends of this process are a terminal, so that a person can type and read."""
    return os.isatty(_STDIN) and os.isatty(_STDOUT)


def window_size() -> channel_pb2.WindowSize:
    """Return the size of this terminal."""
    size = shutil.get_terminal_size()
    return channel_pb2.WindowSize(rows=size.lines, columns=size.columns)


async def converse(line: ClientChannel) -> bool:
    """Give this terminal to the channel until it is closed; False if the user left it before. Raises ChannelLost."""
    with _raw(), _resizing(line):
        showing = asyncio.create_task(_show(line))
        typing = asyncio.create_task(_type(line))
        try:
            await asyncio.wait([showing, typing], return_when=asyncio.FIRST_COMPLETED)
            if not showing.done() and typing.done() and typing.result():
                return False
            await showing
            return True
        finally:
            for task in (showing, typing):
                task.cancel()
            await asyncio.gather(showing, typing, return_exceptions=True)


async def pipe(line: ClientChannel, *, stdin: bool = True) -> None:
    """Join standard input, output and error to the channel until it is closed, byte for byte. Raises ChannelLost."""
    feeding = asyncio.create_task(_feed(line) if stdin else line.send_end())
    try:
        await _show(line)
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


async def _show(line: ClientChannel) -> None:
    async for frame in line.frames():
        if frame.data:
            await write_all(_STDOUT, frame.data)
        if frame.errors:
            await write_all(_STDERR, frame.errors)
        await line.done_with(len(frame.data) + len(frame.errors))


async def _type(line: ClientChannel) -> bool:
    """Send what the user types; return whether the user wants to leave."""
    escapes, leaves = Escapes(), False
    while not leaves and (typed := await _read()):
        data, leaves = escapes.take(typed)
        await line.send(data)
    return leaves


async def _feed(line: ClientChannel) -> None:
    while data := await _read():
        await line.send(data)
    await line.send_end()


async def _read() -> bytes:
    with suppress(OSError):
        return await on_daemon_thread(lambda: os.read(_STDIN, limits.CHANNEL_FRAME_BYTES))
    return b""


@contextmanager
def _raw() -> Iterator[None]:
    with interrupts.kept_terminal(_STDIN):
        sys.stdout.flush()
        tty.setraw(_STDIN)
        yield


@contextmanager
def _resizing(line: ClientChannel) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def resize() -> None:
        task = loop.create_task(line.resize(window_size()))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGWINCH, resize)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
