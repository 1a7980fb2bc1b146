"""A channel as verbs use it: open it, then send and receive bytes, never more than the window allows."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import grpc
from ebbtide_core.model import limits
from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import channel_pb2
from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

from ebbtide_cli.errors import FAILED, Failure, Unreachable
from ebbtide_cli.masters.connection import connecting

ACKNOWLEDGED_BYTES: Final = limits.CHANNEL_WINDOW_BYTES // 4
"""Bytes that are acknowledged together: fewer would double the messages, more would make the sender wait."""


class ChannelLost(Failure):
    """The node or the master closed the channel before its end; the message says why."""


class ClientChannel:
    """An open channel, with both its directions."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._writing = asyncio.Lock()  # a stream takes one message at a time
        self._room = limits.CHANNEL_WINDOW_BYTES
        self._room_changed = asyncio.Event()
        self._unacknowledged = 0
        self.consumed = 0  # bytes of what was sent that the other end is done with
        self.opened = channel_pb2.ChannelOpened()
        self.closed: channel_pb2.ChannelClosed | None = None

    async def open(self, want: channel_pb2.OpenChannel) -> None:
        """Ask for what ``want`` describes, and wait until the channel is open. Raises ChannelLost."""
        await self._write(channel_pb2.ChannelInput(open=want))
        message = await self._read()
        if message.WhichOneof("body") == "closed":
            raise ChannelLost(message.closed.error or "the channel was closed at once")
        self.opened = message.opened

    async def frames(self) -> AsyncIterator[channel_pb2.ChannelOutput]:
        """Yield the frames that arrive, `data`, `errors` and `end`; afterwards `closed` is set. Raises ChannelLost.

        The caller acknowledges each frame's bytes with `done_with` once it has passed them on.
        """
        while True:
            message = await self._read()
            match message.WhichOneof("body"):
                case "consumed":
                    self.consumed += message.consumed
                    self._room += message.consumed
                    self._room_changed.set()
                case "closed":
                    self.closed = message.closed
                    if message.closed.error:
                        raise ChannelLost(message.closed.error)
                    return
                case _:
                    yield message

    async def done_with(self, count: int) -> None:
        """Note that ``count`` received bytes were passed on, so that as many more may arrive."""
        self._unacknowledged += count
        if self._unacknowledged >= ACKNOWLEDGED_BYTES:
            acknowledged, self._unacknowledged = self._unacknowledged, 0
            await self._write(channel_pb2.ChannelInput(consumed=acknowledged))

    async def send(self, data: bytes) -> None:
        """Send the data as soon as the window has room for it."""
        while data:
            while self._room <= 0:
                self._room_changed.clear()
                await self._room_changed.wait()
            size = min(self._room, limits.CHANNEL_FRAME_BYTES, len(data))
            self._room -= size
            await self._write(channel_pb2.ChannelInput(data=data[:size]))
            data = data[size:]

    async def send_end(self) -> None:
        """Tell the other end that no data follows."""
        await self._write(channel_pb2.ChannelInput(end=True))

    async def resize(self, size: channel_pb2.WindowSize) -> None:
        """Tell the other end the terminal's new size."""
        await self._write(channel_pb2.ChannelInput(size=size))

    async def _write(self, message: channel_pb2.ChannelInput) -> None:
        async with self._writing:
            # Once the call is over, reading from it gives the reason.
            with suppress(asyncio.InvalidStateError, grpc.RpcError):
                await self._call.write(message)

    async def _read(self) -> channel_pb2.ChannelOutput:
        message = await self._call.read()
        if not isinstance(message, channel_pb2.ChannelOutput):
            raise Unreachable("the master ended the channel without a word")
        return message


@asynccontextmanager
async def open_channel(master: str | None, want: channel_pb2.OpenChannel) -> AsyncIterator[ClientChannel]:
    """Open the channel that ``want`` describes, for the duration of the block. Raises only `Failure`."""
    async with connecting(master) as stub, open_channel_over(stub, want) as channel:
        yield channel


@asynccontextmanager
async def open_channel_over(stub: ClientServiceStub, want: channel_pb2.OpenChannel) -> AsyncIterator[ClientChannel]:
    """Open the channel over an existing connection, for the duration of the block."""
    connect: Any = stub.Connect
    call = connect()
    channel = ClientChannel(call)
    try:
        await channel.open(want)
        yield channel
    finally:
        call.cancel()


async def write_all(descriptor: int, data: bytes) -> None:
    """Write all the data without blocking the event loop, however slowly it is read."""

    def write() -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    await on_daemon_thread(write)


def exit_code(closed: channel_pb2.ChannelClosed | None) -> int:
    """Return the exit code of the process at the other end, as a shell gives it."""
    if closed is None:
        return FAILED
    return 128 + closed.signal if closed.signal else closed.exit_code & 0xFF
