"""Dashboards in this process, served before a real master, and visitors that speak HTTP by hand."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from ebbtide_machine.place import NotTrusted
from ebbtide_master.identity.caller import Role
from ebbtide_master.identity.identities import User
from ebbtide_protos import home_socket
from ebbtide_protos.v1 import agent_pb2
from ebbtide_web import serve as serving
from ebbtide_web.access.sessions import Links
from ebbtide_web.dashboard import Dashboard, DashboardSettings
from ebbtide_web.reach import AwayError

from tests.master.world import DEADLINE_S, Master, a_master

REPLAY = (sys.executable, "-P", "-m", "ebbtide_cli.main", "replay")
USERS = {"ann": Role.USER, "bob": Role.USER, "olga": Role.OPERATOR, "ada": Role.ADMIN}


@dataclass
class Reply:
    """An answer, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Events:
    """A stream that was opened."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int = 0
    seen: list[tuple[str, Any]] = field(default_factory=list)
    raw: bytes = b""

    async def next(self) -> tuple[str, Any] | None:
        """The next event but those that say that the stream is there, or None at the end."""
        async with asyncio.timeout(DEADLINE_S):
            while b"\n\n" not in self.raw:
                size = int((await self.reader.readline()).strip() or b"0", 16)
                if not size:
                    return None
                self.raw += (await self.reader.readexactly(size + 2))[:-2]
        text, _, self.raw = self.raw.partition(b"\n\n")
        lines = dict(line.split(b": ", 1) for line in text.split(b"\n") if b": " in line)
        if lines.get(b"event", b"here") == b"here":
            return await self.next()
        self.seen.append((lines[b"event"].decode(), json.loads(lines[b"data"])))
        return self.seen[-1]

    async def until(self, condition: Any) -> Any:
        """Read until ``condition`` of an event's name and data holds; the data."""
        while (found := await self.next()) is not None:
            if condition(*found):
                return found[1]
        raise AssertionError(f"the stream ended: {self.seen[-3:]}")

    async def ends(self) -> list[str]:
        """Read to the end; the names of the events."""
        while await self.next() is not None:
            pass
        return [name for name, _ in self.seen]

    def close(self) -> None:
        self.writer.close()


class Visitor:
    """Somebody with a browser's cookies, or without."""

    def __init__(self, listening: serving.Listening) -> None:
        self.cookie, self.csrf = "", ""
        self.base, self.origin = listening.base, listening.url.removesuffix(listening.base)
        self.host = self.origin.partition("://")[2]
        self._listening = listening

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._listening.made is not None:
            return await asyncio.open_unix_connection(self._listening.made.path, limit=2**22)
        return await asyncio.open_connection("127.0.0.1", self._listening.port, limit=2**22)

    async def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[Any, Any, int, dict]:
        """Send a request for ``path`` below the dashboard's own; headers that are empty are left out."""
        reader, writer = await self._connected()
        given = {"host": self.host, "connection": "close", "accept": "application/json"}
        given |= {"cookie": self.cookie} if self.cookie else {}
        if method not in ("GET", "HEAD"):
            given |= {"origin": self.origin, "content-type": "application/json", "x-csrf": self.csrf}
            given |= {"content-length": str(len(body))}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [
            f"{method} {self.base}{path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in given.items() if value),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        async with asyncio.timeout(DEADLINE_S):
            status = int((await reader.readline()).split()[1])
            found: dict[str, str] = {}
            while line := (await reader.readline()).decode().strip():
                name, _, value = line.partition(":")
                found[name.lower()] = value.strip()
        return reader, writer, status, found

    async def ask(self, method: str, path: str, fields: Any = None, **headers: str) -> Reply:
        body = b"" if fields is None else json.dumps(fields).encode()
        reader, writer, status, found = await self.send(method, path, body, **headers)
        async with asyncio.timeout(DEADLINE_S):
            if found.get("transfer-encoding") == "chunked":
                text = b""
                while size := int((await reader.readline()).strip() or b"0", 16):
                    text += (await reader.readexactly(size + 2))[:-2]
            else:
                text = await reader.read()
        writer.close()
        return Reply(status, found, text)

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.ask("GET", path, **headers)

    async def post(self, path: str, fields: Any = None, **headers: str) -> Reply:
        return await self.ask("POST", path, {} if fields is None else fields, **headers)

    async def broken_off(self, path: str, meanwhile: Callable[[], Awaitable[Any]]) -> bytes:
        """Begin to read, do something, and read until the connection is closed; what came, if it has no end."""
        reader, writer, _, _ = await self.send("GET", path)
        async with asyncio.timeout(DEADLINE_S):
            found = await reader.read(2**16)
            await meanwhile()
            found += await reader.read()
        writer.close()
        assert not found.endswith(b"0\r\n\r\n"), "a browser would take it for complete"
        return found

    async def stream(self, path: str) -> Events:
        reader, writer, status, _ = await self.send("GET", path, accept="text/event-stream")
        return Events(reader, writer, status)

    async def page(self, path: str) -> Reply:
        return await self.get(path, accept="text/html")

    async def log_in(self, kind: str, text: str) -> Reply:
        """Log in by a ``code`` or a ``token``."""
        reply = await self.post(f"/login/{kind}", {kind: text})
        if reply.status == 200:
            self.cookie = reply.headers["set-cookie"].partition(";")[0]
            page = (await self.page("/queue")).body.decode()
            self.csrf = page.partition('name="csrf" content="')[2].partition('"')[0]
        return reply


@dataclass
class Stage:
    """A guarded master, and a dashboard before it."""

    home: Path
    master: Master
    dashboard: Dashboard
    app: Any
    listening: serving.Listening
    links: Links
    tokens: dict[str, str]
    stop_master: Callable[[], Awaitable[None]]
    """Ends the master, as its process would, before the stage is left."""
    serving: asyncio.Task[None]

    @property
    def port(self) -> int:
        return self.listening.port

    def visitor(self) -> Visitor:
        return Visitor(self.listening)

    async def logged_in(self, name: str) -> Visitor:
        """Somebody who is logged in."""
        visitor = self.visitor()
        assert (await visitor.log_in("token", self.tokens[name])).status == 200
        return visitor

    def bearer(self, name: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.tokens[name]}"),)


@asynccontextmanager
async def a_dashboard(
    home: Path, links: Path, token: Any, monkeypatch: Any, listening: serving.Listening
) -> AsyncIterator[tuple[Any, Dashboard, asyncio.Task[None]]]:
    """A dashboard that looks for its master in ``home``."""

    @asynccontextmanager
    async def opener() -> AsyncIterator[grpc.aio.Channel]:
        try:
            context = home_socket.reached(home)
            target = context.__enter__()
        except (NotTrusted, OSError) as error:
            raise AwayError(str(error)) from None
        try:
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(target, options=options) as channel:
                yield channel
        finally:
            context.__exit__(None, None, None)

    monkeypatch.setattr("ebbtide_web.dashboard.REVOKED_S", DEADLINE_S)
    monkeypatch.setattr(serving, "STOP_S", int(DEADLINE_S))
    made: list[tuple[Any, Dashboard]] = []
    make_app = serving.make_app

    def noted(settings: DashboardSettings) -> Any:
        made.append(make_app(settings))
        return made[0]

    monkeypatch.setattr(serving, "make_app", noted)
    ready, stopped = asyncio.Event(), asyncio.Event()
    settings = DashboardSettings(
        opener=opener, token=token, links=Links(links), origin=listening.origin, replay=REPLAY, base=listening.base
    )
    task = asyncio.create_task(serving.serve(settings, listening, ready.set, stopped))
    async with asyncio.timeout(DEADLINE_S):
        await ready.wait()
    try:
        yield *made[0], task
    finally:
        stopped.set()
        if not task.done():
            await task


@asynccontextmanager
async def a_stage(
    tmp_path: Path, monkeypatch: Any, base: str = "", shared: serving.Proxied | None = None
) -> AsyncIterator[Stage]:
    """Both, with some users; the dashboard below ``base``, and perhaps ``shared``."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    links = tmp_path / "links"
    async with AsyncExitStack() as stack:
        master = await stack.enter_async_context(a_master(home, guarded=True))
        tokens = await tokens_of_users(master)
        listening = serving.listen(443 if shared else None, shared, base)
        running = a_dashboard(home, links, lambda: tokens["ada"], monkeypatch, listening)
        async with running as (app, dashboard, task):
            yield Stage(home, master, dashboard, app, listening, Links(links), tokens, stack.aclose, task)


async def tokens_of_users(master: Master) -> dict[str, str]:
    """Have the master know all of `USERS`; a token of each."""
    tokens = {}
    for name, role in USERS.items():
        await master.identities.put_user(User(name, role))
        tokens[name] = (await master.identities.issue(name, time.time()))[1]
    return tokens


async def answer_reads(agent: Any, text: bytes, *, ends: bool = True) -> None:
    """Answer whatever the master reads of a log, in which ``text`` is; perhaps not that there is no more."""
    while True:
        read = await agent.receive("read_log")
        if read.tail:
            data = agent_pb2.LogData(request_id=read.request_id, next=0, lines=2)
        elif read.offset >= len(text) and (read.wait or not ends):
            continue  # nothing more is printed
        else:
            data = agent_pb2.LogData(request_id=read.request_id, data=text[read.offset :], next=len(text))
        await agent.send(log=data)
