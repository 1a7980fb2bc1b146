"""Feeds an attempt's standard input from a channel; see supervisor/standard_input.py."""

import asyncio
import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ebbtide_protos.v1 import channel_pb2

from ebbtide_agent.channels.channel_end import ChannelEnd, ChannelError
from ebbtide_agent.channels.inside import connect
from ebbtide_agent.supervisor.streams.standard_input import PACKET_BYTES

_ANSWER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _InputState:
    """The supervisor's last message: how many bytes of the input it has, and whether it wants no more."""

    taken: int
    over: bool


async def feed(client: ChannelEnd, path: Path, opened: channel_pb2.ChannelOpened) -> channel_pb2.ChannelClosed:
    """Pass the input on until all is taken or no longer read; a later call may go on with it. Raises ChannelError."""
    with await connect(path) as supervisor:
        state = await _receive(supervisor)
        opened.input_taken = state.taken
        client.opened(opened)
        passing = asyncio.create_task(_pass_on(client, supervisor), name="channel input")
        try:
            while not state.over:
                before, state = state.taken, await _receive(supervisor)
                if state.taken > before:
                    client.done_with(state.taken - before)
        finally:
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)
    return channel_pb2.ChannelClosed()


async def _receive(supervisor: socket.socket) -> _InputState:
    answer = b""
    with suppress(ConnectionError):
        answer = await asyncio.get_running_loop().sock_recv(supervisor, _ANSWER_BYTES)
    if not answer:
        raise ChannelError("the attempt has ended, or its standard input comes from elsewhere now")
    content = json.loads(answer)
    return _InputState(int(content["taken"]), bool(content["over"]))


async def _pass_on(client: ChannelEnd, supervisor: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await client.receive():
        for start in range(0, len(data), PACKET_BYTES):
            await loop.sock_sendall(supervisor, b"d" + data[start : start + PACKET_BYTES])
    await loop.sock_sendall(supervisor, b"e")
