"""Carries the bytes of one channel both ways, with never more than the window on the way."""

import asyncio
from collections import deque
from collections.abc import Callable

from ebbtide_protos.framing import FRAME_BYTES, WINDOW_BYTES
from ebbtide_protos.v1 import channel_pb2

Put = Callable[[channel_pb2.ChannelOutput], None]


class ChannelError(Exception):
    """The channel cannot go on; the message is one line."""


class ChannelEnd:
    """The two directions of a channel. `on_size` is called with every new size of the client's window."""

    def __init__(self, channel: int, put: Put) -> None:
        self._channel = channel
        self._put = put
        self._room = WINDOW_BYTES
        self._room_changed = asyncio.Event()
        self._arrived: deque[bytes] = deque()
        self._at_end = False
        self._arrival = asyncio.Event()
        self.on_size: Callable[[channel_pb2.WindowSize], None] = lambda size: None
        self.bytes = 0  # passed through the channel, both ways together
        self.has_terminal = False

    # --- from the client ---

    def take(self, message: channel_pb2.ChannelInput) -> None:
        """Take a message of the client that came after the first."""
        match message.WhichOneof("body"):
            case "data" if not self._at_end:
                self.bytes += len(message.data)
                self._arrived.append(message.data)
                self._arrival.set()
            case "end":
                self._at_end = True
                self._arrival.set()
            case "consumed":
                self._room = min(self._room + message.consumed, WINDOW_BYTES)
                self._room_changed.set()
            case "size":
                self.on_size(message.size)

    async def receive(self) -> bytes:
        """Wait for data and return it; empty at the end of the input. Acknowledge it with `done_with`."""
        while not self._arrived:
            if self._at_end:
                return b""
            self._arrival.clear()
            await self._arrival.wait()
        return self._arrived.popleft()

    def done_with(self, count: int) -> None:
        """Acknowledge `count` received bytes, so that the client may send as many more."""
        self._put(channel_pb2.ChannelOutput(channel=self._channel, consumed=count))

    # --- to the client ---

    async def room(self) -> int:
        """Wait until something may be sent, and return how many bytes one frame may have."""
        while self._room <= 0:
            self._room_changed.clear()
            await self._room_changed.wait()
        return min(self._room, FRAME_BYTES)

    def send(self, data: bytes, *, errors: bool = False) -> None:
        """Send data that is not longer than `room` returned."""
        self._room -= len(data)
        self.bytes += len(data)
        frame = channel_pb2.ChannelOutput(channel=self._channel)
        if errors:
            frame.errors = data
        else:
            frame.data = data
        self._put(frame)

    def say(self, words: str) -> None:
        """Show this on the client's terminal, if it has one; the bytes do not count as use of the channel."""
        said = f"\r\nebb: {words}\r\n".encode()
        if self.has_terminal and self._room >= len(said):
            self._room -= len(said)
            self._put(channel_pb2.ChannelOutput(channel=self._channel, data=said))

    def send_end(self) -> None:
        """Say that no data follows."""
        self._put(channel_pb2.ChannelOutput(channel=self._channel, end=True))

    def opened(self, opened: channel_pb2.ChannelOpened) -> None:
        """Say that the channel is open."""
        self._put(channel_pb2.ChannelOutput(channel=self._channel, opened=opened))

    def closed(self, closed: channel_pb2.ChannelClosed) -> None:
        """Send the channel's last message."""
        self._put(channel_pb2.ChannelOutput(channel=self._channel, closed=closed))
