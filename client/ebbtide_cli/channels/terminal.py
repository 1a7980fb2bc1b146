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
from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import channel_pb2

from ebbtide_cli import interrupts
from ebbtide_cli.channels.client_channel import ClientChannel, write_all

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


async def converse(channel: ClientChannel) -> bool:
    """Give this terminal to the channel until it is closed; False if the user left it before. Raises ChannelLost."""
    with _raw(), _resizing(channel):
        showing = asyncio.create_task(_show(channel))
        typing = asyncio.create_task(_type(channel))
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


async def pipe(channel: ClientChannel, *, stdin: bool = True) -> None:
    """Join standard input, output and error to the channel until it is closed, byte for byte. Raises ChannelLost."""
    feeding = asyncio.create_task(_feed(channel) if stdin else channel.send_end())
    try:
        await _show(channel)
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


async def _show(channel: ClientChannel) -> None:
    async for frame in channel.frames():
        if frame.data:
            await write_all(_STDOUT, frame.data)
        if frame.errors:
            await write_all(_STDERR, frame.errors)
        await channel.done_with(len(frame.data) + len(frame.errors))


async def _type(channel: ClientChannel) -> bool:
    """Send what the user types; return whether the user wants to leave."""
    escapes, leaves = Escapes(), False
    while not leaves and (typed := await _read()):
        data, leaves = escapes.take(typed)
        await channel.send(data)
    return leaves


async def _feed(channel: ClientChannel) -> None:
    while data := await _read():
        await channel.send(data)
    await channel.send_end()


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
def _resizing(channel: ClientChannel) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def resize() -> None:
        task = loop.create_task(channel.resize(window_size()))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGWINCH, resize)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
