"""The other end of a node's channels, as a test sees it."""

import asyncio
import itertools
from collections.abc import Callable

from ebbtide_agent.channels.table import ChannelTable
from ebbtide_core.model import limits
from ebbtide_protos.v1 import channel_pb2

from tests.agent.supervisor.node import DEADLINE_S, Node


class End:
    """Opens channels to a node and keeps what comes of each."""

    def __init__(self, node: Node) -> None:
        self.channels = ChannelTable(node.attempts.access, "n1")
        self.channels.attach(self._put)
        self._ids = itertools.count(1)
        self.said: dict[int, list[channel_pb2.ChannelOutput]] = {}
        self.acknowledges: dict[int, bool] = {}
        self._changed = asyncio.Event()

    def _put(self, message: channel_pb2.ChannelOutput) -> None:
        self.said[message.channel].append(message)
        self._changed.set()
        size = len(message.data) + len(message.errors)
        if size and self.acknowledges[message.channel]:
            self.give(message.channel, consumed=size)

    def open(self, acknowledge: bool = True, job_id: str = "1", **want: object) -> int:
        channel = next(self._ids)
        self.said[channel], self.acknowledges[channel] = [], acknowledge
        self.give(channel, open=channel_pb2.OpenChannel(job_id=job_id, attempt=1, **want))
        return channel

    def run(self, *command: str, acknowledge: bool = True, **options: object) -> int:
        return self.open(acknowledge, run=channel_pb2.RunInside(command=command, **options))

    def give(self, channel: int, **body: object) -> None:
        self.channels.take(channel_pb2.ChannelInput(channel=channel, **body))

    async def feed(self, channel: int, data: bytes) -> None:
        """Send this as the window allows, then the end."""
        sent = 0
        while sent < len(data):
            room = limits.CHANNEL_WINDOW_BYTES - (sent - self.consumed(channel))
            size = min(room, limits.CHANNEL_FRAME_BYTES, len(data) - sent)
            if size <= 0:
                await self.until(lambda before=sent - limits.CHANNEL_WINDOW_BYTES: self.consumed(channel) > before)
                continue
            self.give(channel, data=data[sent : sent + size])
            sent += size
        self.give(channel, end=True)

    def consumed(self, channel: int) -> int:
        return sum(message.consumed for message in self.said[channel])

    def out(self, channel: int) -> bytes:
        return b"".join(message.data for message in self.said[channel])

    def errors(self, channel: int) -> bytes:
        return b"".join(message.errors for message in self.said[channel])

    def closed(self, channel: int) -> channel_pb2.ChannelClosed | None:
        return next((m.closed for m in self.said[channel] if m.WhichOneof("body") == "closed"), None)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until it holds, looking whenever something came and now and then besides."""
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                self._changed.clear()
                waiter = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait([waiter], timeout=0.01)
                waiter.cancel()

    async def end(self, channel: int) -> channel_pb2.ChannelClosed:
        """How the channel was closed, once it was."""
        await self.until(lambda: self.closed(channel) is not None)
        closed = self.closed(channel)
        assert closed is not None
        return closed
