"""Keeps the open channels: the client and the node's stream of each, and the frames on the way between them."""

import asyncio
import itertools
from collections import deque
from typing import Final, Protocol

from ebbtide_core.cluster import Refusal, RefusalKind
from ebbtide_core.model import limits
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_protos.v1 import channel_pb2

from ebbtide_master.loop import RefusedError
from ebbtide_master.throttle.concurrency import may_take
from ebbtide_master.throttle.fair_queue import current_queue

WINDOW: Final = limits.CHANNEL_WINDOW_BYTES


class FrameStream(Protocol):
    """An agent's stream."""

    def send_frame(self, frame: channel_pb2.ChannelInput) -> None: ...


class Channel:
    """One channel, between its client's call and its node's stream."""

    def __init__(self, id: int, stream: FrameStream, job: JobId, node: NodeId, user: str) -> None:
        self.id = id
        self.user = user
        self.stream = stream
        self.job = job
        self.node = node
        self._to_client: deque[channel_pb2.ChannelOutput] = deque()
        self._filled = asyncio.Event()
        self._waiting_bytes = 0
        self._on_way = 0  # bytes that were sent to the node and that it has not acknowledged
        self._over = False

    def pass_in(self, message: channel_pb2.ChannelInput) -> None:
        """Pass on what the client sent; a client that does not keep to the window loses its channel."""
        size = len(message.data)
        self._on_way += size
        if message.WhichOneof("body") in ("open", None) or size > limits.CHANNEL_FRAME_BYTES:
            self.break_off(f"a frame is an opening, or empty, or over the limit of {limits.CHANNEL_FRAME_BYTES} bytes")
        elif self._on_way > WINDOW:
            self.break_off(f"more than {WINDOW} bytes were sent without waiting")
        elif not self._over:
            message.channel = self.id
            self.stream.send_frame(message)

    def pass_out(self, message: channel_pb2.ChannelOutput) -> None:
        """Pass on what the node sent."""
        if self._over:
            return
        self._on_way -= message.consumed
        self._waiting_bytes += len(message.data) + len(message.errors)
        self._over = message.WhichOneof("body") == "closed"
        message.channel = 0
        self._to_client.append(message)
        self._filled.set()
        if self._waiting_bytes > WINDOW:
            self.break_off(f"more than {WINDOW} bytes wait to be read")

    def break_off(self, why: str) -> None:
        """End the channel at both ends."""
        self.hang_up(why)
        self.end(why)

    def hang_up(self, why: str) -> None:
        """Tell the node that the client's end is closed."""
        if not self._over:
            self.stream.send_frame(channel_pb2.ChannelInput(channel=self.id, close=why))

    def end(self, why: str) -> None:
        """Tell the client that nothing follows, and drop what it has not read."""
        if not self._over:
            self._to_client.clear()
            self._waiting_bytes = 0
            self.pass_out(channel_pb2.ChannelOutput(closed=channel_pb2.ChannelClosed(error=why)))

    async def next_out(self) -> channel_pb2.ChannelOutput:
        """Wait for and return the next message for the client."""
        while not self._to_client:
            self._filled.clear()
            await self._filled.wait()
        message = self._to_client.popleft()
        self._waiting_bytes -= len(message.data) + len(message.errors)
        return message


class Channels:
    """All channels of this master."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._open: dict[int, Channel] = {}

    def open(self, stream: FrameStream, node: NodeId, want: channel_pb2.OpenChannel) -> Channel:
        """Open a channel to ``node``, and send it what the client wants. Raises `RefusedError` at a limit."""
        job = JobId(want.job_id)
        of_job = sum(channel.job == job for channel in self._open.values())
        users = [channel.user for channel in self._open.values() if channel.node == node]
        if of_job >= limits.MAX_CHANNELS_PER_JOB:
            raise _full(f"job {job}", limits.MAX_CHANNELS_PER_JOB)
        if len(users) >= limits.MAX_CHANNELS_PER_NODE:
            raise _full(f"node {node}", limits.MAX_CHANNELS_PER_NODE)
        own = users.count(current_queue())
        if not may_take(own, len(users), limits.MAX_CHANNELS_PER_NODE):
            words = f"you have {own} of the {len(users)} open channels of node {node}: the rest is for others"
            raise RefusedError(Refusal(RefusalKind.LIMIT, words))
        channel = Channel(next(self._ids), stream, job, node, current_queue())
        self._open[channel.id] = channel
        stream.send_frame(channel_pb2.ChannelInput(channel=channel.id, open=want))
        return channel

    def take(self, stream: FrameStream, message: channel_pb2.ChannelOutput) -> None:
        """Take in what a node sent; a message for a channel that is closed, or another node's, is dropped."""
        channel = self._open.get(message.channel)
        if channel is not None and channel.stream is stream:
            channel.pass_out(message)

    def leave(self, channel: Channel) -> None:
        """Close ``channel``, because its client's call is over."""
        channel.hang_up("the client went away")
        self._open.pop(channel.id, None)

    def closed(self, stream: FrameStream) -> None:
        """End the channels of a node's stream that has ended."""
        for channel in list(self._open.values()):
            if channel.stream is stream:
                channel.end(f"node {channel.node} went away")


def _full(what: str, limit: int) -> RefusedError:
    return RefusedError(Refusal(RefusalKind.LIMIT, f"{what} has {limit} open channels already, which is the limit"))
