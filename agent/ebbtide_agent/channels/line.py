"""One channel as what serves it sees it: bytes in, bytes out, and never more on the way than the window."""

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
        self.bytes = 0  # that passed through it, either way
        self.has_terminal = False

    # --- from the client ---

    def take(self, message: channel_pb2.ChannelInput) -> None:
        """Take in what the client sent after its first message."""
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
        """What arrived next; empty at the end of the input. To be acknowledged with `done_with`."""
        while not self._arrived:
            if self._at_end:
                return b""
            self._arrival.clear()
            await self._arrival.wait()
        return self._arrived.popleft()

    def done_with(self, count: int) -> None:
        """So many bytes of what was received are passed on: the client may send as many more."""
        self._put(channel_pb2.ChannelOutput(channel=self._channel, consumed=count))

    # --- to the client ---

    async def room(self) -> int:
        """How much may be sent in one frame now; waits until it is more than nothing."""
        while self._room <= 0:
            self._room_changed.clear()
            await self._room_changed.wait()
        return min(self._room, FRAME_BYTES)

    def send(self, data: bytes, *, errors: bool = False) -> None:
        """Send this, for which there is room."""
        self._room -= len(data)
        self.bytes += len(data)
        frame = channel_pb2.ChannelOutput(channel=self._channel)
        if errors:
            frame.errors = data
        else:
            frame.data = data
        self._put(frame)

    def say(self, words: str) -> None:
        """Say this to who sits at the terminal, if there is one; it is no use of the channel."""
        said = f"\r\nebb: {words}\r\n".encode()
        if self.has_terminal and self._room >= len(said):
            self._room -= len(said)
            self._put(channel_pb2.ChannelOutput(channel=self._channel, data=said))

    def send_end(self) -> None:
        """No data follows."""
        self._put(channel_pb2.ChannelOutput(channel=self._channel, end=True))

    def opened(self, opened: channel_pb2.ChannelOpened) -> None:
        """Say that what the client wanted is there."""
        self._put(channel_pb2.ChannelOutput(channel=self._channel, opened=opened))

    def closed(self, closed: channel_pb2.ChannelClosed) -> None:
        """The last word."""
        self._put(channel_pb2.ChannelOutput(channel=self._channel, closed=closed))
