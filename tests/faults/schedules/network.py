"""The network between agents and master: in order on one connection, but late, cut, half open, or one way.

Some orders and reports come twice, which no connection does, but every handler must bear.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import grpc
from ebbtide_protos.v1 import agent_pb2

SLOWEST_S: Final = 0.2
UNANSWERED_S: Final = 40.0
"""After so long without an answer to a ping, an end gives its connection up."""
TWICE: Final = 0.05
GHOST_S: Final = 60.0
"""How late the second of two may come."""
ONCE: Final = ("hello", "welcome", "heartbeat", "heard")
"""Messages that are true only when they come, so only the order of a connection makes them so."""
_BROKEN: Final = object()


def broken(words: str) -> grpc.aio.AioRpcError:
    """What a call raises whose connection is gone."""
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), words)


class Wire:
    """One direction of one connection. While `held`, what is sent stays on the way."""

    def __init__(self, rng: Random, kind: type[Any]) -> None:
        self._rng = rng
        self._kind = kind
        self._held: list[bytes] = []
        self._free_at = 0.0
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self.held = False
        self.broken = False

    def send(self, message: Any) -> None:
        data = message.SerializeToString()
        if self.held:
            self._held.append(data)
        else:
            self._carry(data)
        if message.WhichOneof("body") not in ONCE and self._rng.random() < TWICE:
            asyncio.get_running_loop().call_later(self._rng.uniform(0.0, GHOST_S), self._arrive, data)

    def _carry(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._free_at = max(self._free_at, loop.time() + self._rng.uniform(0.0, SLOWEST_S))
        loop.call_at(self._free_at, self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if not self.broken:
            self._arrived.put_nowait(self._kind.FromString(data))

    def release(self) -> None:
        """What was held goes on."""
        self.held = False
        for data in self._held:
            self._carry(data)
        self._held.clear()

    def break_off(self, deliver_held: bool = False) -> None:
        """Nothing arrives any more; with ``deliver_held``, what the other end's machine has taken in still does."""
        for data in self._held if deliver_held else ():
            self._arrived.put_nowait(self._kind.FromString(data))
        self.broken = True
        self._arrived.put_nowait(_BROKEN)

    async def receive(self) -> Any:
        message = await self._arrived.get()
        if message is _BROKEN:
            self._arrived.put_nowait(_BROKEN)
            raise broken("connection lost")
        return message


class Connection:
    """One agent's stream. It is a channel, a stub's method and a call at once, as far as the agent's link looks."""

    def __init__(self, rng: Random) -> None:
        self.up = Wire(rng, agent_pb2.AgentMessage)
        self.down = Wire(rng, agent_pb2.MasterMessage)
        self.served: asyncio.Task[None] | None = None

    def stream_stream(self, *_: Any, **__: Any) -> Callable[[], "Connection"]:
        return lambda **_: self

    def unary_unary(self, *_: Any, **__: Any) -> Callable[[], "Connection"]:
        return lambda: self

    unary_stream = stream_unary = unary_unary

    async def write(self, message: Any) -> None:
        if self.up.broken:
            raise broken("connection lost")
        self.up.send(message)

    async def read(self) -> Any:
        return await self.down.receive()

    def cut(self, deliver_held: bool = False) -> None:
        """Both ends lose it."""
        self.up.break_off()
        self.down.break_off(deliver_held)
        if self.served is not None:
            self.served.cancel()


class Network:
    """Who can reach whom. ``attach`` serves a connection at the master, if there is one."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.connections: dict[str, Connection] = {}
        self._held: dict[str, tuple[bool, bool]] = {}
        self.agents: Any = None  # the master's side, while one lives

    @asynccontextmanager
    async def open(self, node: str) -> AsyncIterator[Connection]:
        """A connection from ``node`` to the master."""
        if self.agents is None:
            raise broken("connection refused")
        connection = self.connections[node] = Connection(self._rng)
        connection.up.held, connection.down.held = self._held.get(node, (False, False))
        connection.served = asyncio.create_task(_serve(self.agents, connection), name=f"serve {node}")
        try:
            yield connection
        finally:
            connection.cut()

    def hold(self, node: str, *, up: bool, down: bool) -> None:
        """Keep what ``node`` sends, or what it is sent, on the way, until `heal`; soon both ends give up."""
        self._held[node] = (up, down)
        connection = self.connections.get(node)
        if connection is not None:
            connection.up.held, connection.down.held = up or connection.up.held, down or connection.down.held
            asyncio.get_running_loop().call_later(UNANSWERED_S * self._rng.uniform(0.5, 1.0), self._give_up, connection)

    def _give_up(self, connection: Connection) -> None:
        if connection.up.held or connection.down.held:
            # What had reached the machine of a stopped agent is read when it goes on.
            connection.cut(deliver_held=self._rng.random() < 0.5)

    def heal(self, node: str) -> None:
        self._held.pop(node, None)
        connection = self.connections.get(node)
        if connection is not None:
            connection.up.release()
            connection.down.release()

    def cut(self, node: str) -> None:
        if node in self.connections:
            self.connections[node].cut()

    def cut_all(self) -> None:
        for connection in self.connections.values():
            connection.cut()


async def _serve(agents: Any, connection: Connection) -> None:
    async def requests() -> AsyncIterator[Any]:
        while True:
            try:
                yield await connection.up.receive()
            except grpc.aio.AioRpcError:
                return

    context = SimpleNamespace(abort=_abort, peer=lambda: "simulated", auth_context=dict, invocation_metadata=tuple)
    try:
        async for reply in agents.Attach(requests(), context):
            connection.down.send(reply)
    finally:
        connection.cut()


async def _abort(code: Any, words: str = "") -> None:
    raise broken(words)
