"""Connects a channel to the session of a shell; see ebbtide_agent/channels/shell.py."""

import asyncio
import socket
from pathlib import Path

from ebbtide_protos.v1 import channel_pb2

from ebbtide_agent.channels.channel_end import ChannelEnd, ChannelError
from ebbtide_agent.channels.inside import connect
from ebbtide_agent.channels.shell import PACKET_BYTES

_BEGIN_S = 5.0
_PAUSE_S = 0.02


async def attach(
    client: ChannelEnd, path: Path, want: channel_pb2.AttachSession, opened: channel_pb2.ChannelOpened
) -> channel_pb2.ChannelClosed:
    """Stay attached until the session ends or is taken over; if cancelled, leave it running. Raises ChannelError."""
    with await _arrive(path) as session:
        client.opened(opened)
        _resize(session, want.size)
        client.on_size = lambda size: _resize(session, size)
        feeding = asyncio.create_task(_feed(client, session), name="channel input")
        try:
            return channel_pb2.ChannelClosed(exit_code=await _show(client, session))
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)


async def _arrive(path: Path) -> socket.socket:
    """Connect to the session, which may just have begun and not listen yet. Raises ChannelError."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _BEGIN_S
    while True:
        try:
            return await connect(path)
        except ChannelError:
            if loop.time() > deadline:
                raise
        await asyncio.sleep(_PAUSE_S)


async def _show(client: ChannelEnd, session: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    while True:
        packet = await loop.sock_recv(session, PACKET_BYTES + 1)
        match packet[:1]:
            case b"d":
                data = packet[1:]
                while data:
                    room = await client.room()
                    client.send(data[:room])
                    data = data[room:]
            case b"x":
                return int(packet[1:])
            case _:
                raise ChannelError("detached: the session was taken over, or its attempt has ended")


async def _feed(client: ChannelEnd, session: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await client.receive():
        for start in range(0, len(data), PACKET_BYTES):
            await loop.sock_sendall(session, b"d" + data[start : start + PACKET_BYTES])
        client.done_with(len(data))


def _resize(session: socket.socket, size: channel_pb2.WindowSize) -> None:
    """Send the size without waiting; a session that cannot take it now gets the next one."""
    try:
        session.send(b"w%d %d" % (min(size.rows or 24, 65535), min(size.columns or 80, 65535)))
    except OSError:
        return
