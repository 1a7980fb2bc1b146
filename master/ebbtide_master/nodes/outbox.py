"""Queues what is sent to one agent: orders and answers in their order, and frames of channels when there are none."""

import asyncio
from collections import deque

from ebbtide_protos.v1 import agent_pb2, channel_pb2


class AgentOutbox:
    """Sends frames of different channels in turn, so that a big copy delays neither an order nor a keystroke."""

    def __init__(self) -> None:
        self._messages: deque[agent_pb2.MasterMessage | None] = deque()
        self._frames: dict[int, deque[channel_pb2.ChannelInput]] = {}  # by channel; the next turn is the first one's
        self._filled = asyncio.Event()

    def put_nowait(self, message: agent_pb2.MasterMessage | None) -> None:
        """Send ``message`` after the messages before it; None ends the stream."""
        self._messages.append(message)
        self._filled.set()

    def put_frame(self, frame: channel_pb2.ChannelInput) -> None:
        """Send ``frame`` after the frames of its channel that already wait."""
        self._frames.setdefault(frame.channel, deque()).append(frame)
        self._filled.set()

    async def get(self) -> agent_pb2.MasterMessage | None:
        """Wait for and return the next message to send, or None at the end of the stream."""
        while not (self._messages or self._frames):
            self._filled.clear()
            await self._filled.wait()
        return self._messages.popleft() if self._messages else agent_pb2.MasterMessage(channel=self._next_frame())

    def _next_frame(self) -> channel_pb2.ChannelInput:
        channel = next(iter(self._frames))
        waiting = self._frames.pop(channel)
        frame = waiting.popleft()
        if waiting:
            self._frames[channel] = waiting
        return frame
