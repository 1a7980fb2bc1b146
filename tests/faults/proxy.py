"""A TCP connection that can go bad: a proxy on loopback whose faults are switched while it runs.

Each direction has a fault of its own, so that a partition can be one way. A line that *holds* delivers late what it
was given, as TCP does when a cable is plugged in again. One that *swallows* loses it: such a connection is half open,
and is reset as soon as its line is mended, for what it lost does not come back.
"""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Self

from ebbtide_protos import home_socket

CHUNK = 1 << 16
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes of a close a reset."""
Address = tuple[str, int]


class Way(Enum):
    """Which bytes: those of whoever connected, or the answers."""

    ONWARD = "onward"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class Pass:
    """Nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Bytes, and the end of the connection, wait until the fault is over."""


@dataclass(frozen=True, slots=True)
class Swallow:
    """Bytes, and the end of the connection, vanish."""


@dataclass(frozen=True, slots=True)
class Delay:
    """What is read at once arrives later by a time between the two, in seconds; the order is kept."""

    least_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class Cut:
    """Every connection is reset after so many bytes more."""

    after_bytes: int


Fault = Pass | Hold | Swallow | Delay | Cut


@dataclass(eq=False, slots=True)
class _Connection:
    """Both ends; ``lossy`` once bytes of it were swallowed."""

    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    lossy: bool = False

    def reset(self) -> None:
        for writer in self.writers:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()


class _Reset(Exception):
    """The connection is to be reset."""


class Proxy:
    """Passes connections to ``port`` on to ``target()``, which is asked for each; a context that ends them all.

    With a ``home``, it passes on what comes to the socket there, as if it were a master; a path as target is a socket.

    Its methods may be called from any thread, and return when they are in effect. ``seed`` decides the delays."""

    def __init__(self, target: Callable[[], Address | Path], seed: int = 0, home: Path | None = None) -> None:
        self.port = 0
        self.home = home
        self._open = contextlib.ExitStack()
        self._target = target
        self._random = random.Random(seed)
        self._faults: dict[Way, Fault] = dict.fromkeys(Way, Pass())
        self._refuses = False
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- faults ---

    def set(self, fault: Fault, *ways: Way) -> None:
        """From now on the fault holds for these ways; for both if none is named."""
        self._do(self._set(fault, ways or tuple(Way)))

    def refuse(self, refuses: bool = True) -> None:
        """Whether new connections are reset at once."""
        self._do(self._refuse(refuses))

    def drop(self) -> None:
        """Reset all connections that there are."""
        self._do(self._drop())

    def heal(self) -> None:
        """Nothing is wrong any more."""
        self.refuse(False)
        self.set(Pass())

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    @property
    def has_swallowed(self) -> bool:
        """Whether a connection that there is has lost anything."""
        return any(connection.lossy for connection in list(self._connections))

    # --- in the thread ---

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    async def _listen(self) -> None:
        if self.home is not None:
            target = self._open.enter_context(home_socket.made(self.home))
            self._server = await asyncio.start_unix_server(self._accept, target.removeprefix("unix:"))
            return
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        self._refuses = True
        await self._set(Pass(), tuple(Way))
        await self._drop()
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()
        self._open.close()

    async def _set(self, fault: Fault, ways: tuple[Way, ...]) -> None:
        self._faults |= dict.fromkeys(ways, fault)
        if not any(isinstance(fault, Swallow) for fault in self._faults.values()):
            for connection in [connection for connection in self._connections if connection.lossy]:
                connection.reset()
        self._wake()

    async def _refuse(self, refuses: bool) -> None:
        self._refuses = refuses

    async def _drop(self) -> None:
        for connection in self._connections:
            connection.reset()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = _Connection([writer])
        self._connections.add(connection)
        with contextlib.suppress(_Reset, OSError):  # whoever is still connected sees it
            if not self._refuses:
                await self._serve(connection, reader, writer)
        connection.reset()
        self._connections.discard(connection)
        self._tasks.discard(task)

    async def _serve(self, connection: _Connection, near: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while isinstance(self._faults[Way.ONWARD], Hold | Swallow):
            await self._changed.wait()
        if self._refuses:
            raise _Reset
        far, onward = await _connected(self._target())
        connection.writers.append(onward)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(connection, Way.ONWARD, near, onward))
                both.create_task(self._pump(connection, Way.BACK, far, writer))
        except* (_Reset, OSError):
            raise _Reset from None

    async def _pump(
        self, connection: _Connection, way: Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        """Pass on until the end of the connection, whose writing side is then closed."""
        cut, left = None, 0
        while True:
            data = await source.read(CHUNK)
            while isinstance(fault := self._faults[way], Hold) or (isinstance(fault, Swallow) and not data):
                await self._changed.wait()
            if connection.lossy and not isinstance(fault, Swallow):
                raise _Reset
            match fault:
                case Swallow():
                    connection.lossy = True
                    continue
                case Delay(least, most):
                    await asyncio.sleep(self._random.uniform(least, most))
                case Cut(after):
                    cut, left = fault, (left if cut is fault else after) - len(data)
                    if left <= 0:
                        sink.write(data[: left or None])
                        await sink.drain()
                        raise _Reset
            if not data:
                sink.write_eof()
                return
            sink.write(data)
            await sink.drain()


def a_line(home: Path, name: str, seed: int = 0) -> Proxy:
    """One to the master of ``home``, which has run: what an agent or a client finds there is that master's."""
    place = home / "lines" / name
    place.mkdir(mode=0o700, parents=True)
    (place / "token").symlink_to(home / "token")
    return Proxy(lambda: home, seed, place)


async def _connected(target: Address | Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if not isinstance(target, Path):
        return await asyncio.open_connection(*target)
    with home_socket.entered(target) as named:
        return await asyncio.open_unix_connection(named.removeprefix("unix:"))
