"""Serves the dashboard on a port or a UNIX socket, and ends its streams before it stops."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn

from ebbtide_web.access.guard import App, Origin
from ebbtide_web.access.unix_socket import UnixSocket, listen_at
from ebbtide_web.app import make_app
from ebbtide_web.dashboard import Dashboard, DashboardSettings

DEFAULT_PORT: Final = 8642
PROXY_PORT: Final = 443
"""The port of a proxy, unless another one is named."""
LOOPBACK: Final = "127.0.0.1"
HOSTS: Final = frozenset({"127.0.0.1", "localhost"})
STOP_S: Final = 2


@dataclass(frozen=True, slots=True)
class Shared:
    """How other machines reach a dashboard, which is with TLS: by one of these names, shown this certificate."""

    hosts: tuple[str, ...]
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Proxied:
    """How a proxy on this machine reaches a dashboard, at ``socket``, and browsers the proxy: by one of these names."""

    hosts: tuple[str, ...]
    socket: Path
    group: int | None = None
    """A group (gid) that may connect to the socket; None if only this account may."""


@dataclass(frozen=True, slots=True)
class Listening:
    """An open port or socket, and the address to which it belongs."""

    socket: socket.socket
    origin: Origin
    host: str
    """The name of the host in the address of the first page."""
    base: str = ""
    """The path below which all pages are, such as ``/ebb``."""
    shared: Shared | None = None
    made: UnixSocket | None = None
    """The socket in the file system, if it is one of those."""

    @property
    def port(self) -> int:
        """The port in the address."""
        return self.origin.port

    @property
    def url(self) -> str:
        """The address of the first page, without the slash at its end."""
        port = "" if self.port == self.origin.usual_port else f":{self.port}"
        return f"{self.origin.scheme}://{self.host}{port}{self.base}"


def listen(port: int | None, shared: Shared | Proxied | None = None, base: str = "") -> Listening:
    """Open a port: ``port``, or else the default one, or if that is taken any other. Raises `OSError`.

    Without ``shared`` it is open to this machine only. If a proxy shares it, a UNIX socket is opened, and ``port`` is
    that of the proxy; that raises `NoSocketError` and `NotTrusted`, too.
    """
    hosts = HOSTS if shared is None else frozenset(name.casefold() for name in shared.hosts)
    if isinstance(shared, Proxied):
        made = listen_at(shared.socket, shared.group)
        origin = Origin(hosts, port or PROXY_PORT, tls=True, proxied=True)
        return Listening(made.socket, origin, shared.hosts[0], base, made=made)
    opened = _open_port(port, LOOPBACK if shared is None else "")
    origin = Origin(hosts, opened.getsockname()[1], tls=shared is not None)
    return Listening(opened, origin, LOOPBACK if shared is None else shared.hosts[0], base, shared)


def _open_port(port: int | None, address: str) -> socket.socket:
    for number in (port,) if port is not None else (DEFAULT_PORT, 0):
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((address, number))
            opened.listen(256)
        except OSError:
            opened.close()
            if number == 0 or port is not None:
                raise
            continue
        return opened
    raise AssertionError("the last number is 0, for which there is always a port")


class _Server(uvicorn.Server):
    """Ends all sessions, with their streams, before it waits for what is open."""

    def __init__(self, config: uvicorn.Config, dashboard: Dashboard) -> None:
        super().__init__(config)
        self._dashboard = dashboard

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        await self._dashboard.end_sessions()
        await super().shutdown(sockets)


def config_of(app: App, shared: Shared | None = None) -> uvicorn.Config:
    """Return how the server works: no forwarded headers are believed, and nothing says what serves."""
    return uvicorn.Config(
        app,
        ssl_certfile=None if shared is None else shared.certificate,
        ssl_keyfile=None if shared is None else shared.key,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=STOP_S,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=64 * 1024,
        limit_concurrency=2000,
        ws="none",
        lifespan="on",
    )


async def serve(
    settings: DashboardSettings, listening: Listening, ready: Callable[[], None], stopped: asyncio.Event
) -> None:
    """Serve until ``stopped``; call ``ready`` once requests are answered. Raises whatever fault ended the feed."""
    app, dashboard = make_app(settings)
    server = _Server(config_of(app, listening.shared), dashboard)
    serving = asyncio.create_task(server._serve([listening.socket]))  # `serve` would take over the signals
    stopping = asyncio.create_task(stopped.wait())
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            ready()
        await asyncio.wait({serving, stopping, *dashboard.tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in dashboard.tasks:
            if task.done():
                task.result()  # a fault ends the dashboard, which would show what is not so any more
    finally:
        stopping.cancel()
        if listening.made is not None:
            listening.made.remove()
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving
        listening.socket.close()
