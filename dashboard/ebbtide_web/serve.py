"""Serves the dashboard on a loopback port, and ends its streams before it stops."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn

from ebbtide_web.app import Dashboard, DashboardSettings, make_app
from ebbtide_web.guard import App, Origin

DEFAULT_PORT: Final = 8642
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
class Listening:
    """An open port: on loopback, or with ``shared`` on every address of this machine."""

    socket: socket.socket
    port: int
    shared: Shared | None = None

    @property
    def origin(self) -> Origin:
        """Where browsers reach it."""
        if self.shared is None:
            return Origin(HOSTS, self.port)
        return Origin(frozenset(name.casefold() for name in self.shared.hosts), self.port, tls=True)

    @property
    def url(self) -> str:
        """The address of the first page."""
        return (
            f"http://{LOOPBACK}:{self.port}" if self.shared is None else f"https://{self.shared.hosts[0]}:{self.port}"
        )


def listen(port: int | None, shared: Shared | None = None) -> Listening:
    """Open a port: ``port``, or else the default one, or if that is taken any other. Raises `OSError`.

    Without ``shared`` it is open to this machine only.
    """
    for number in (port,) if port is not None else (DEFAULT_PORT, 0):
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((LOOPBACK if shared is None else "", number))
            opened.listen(256)
        except OSError:
            opened.close()
            if number == 0 or port is not None:
                raise
            continue
        return Listening(opened, opened.getsockname()[1], shared)
    raise AssertionError("the last number is 0, for which there is always a port")


class _Server(uvicorn.Server):
    """Ends all sessions' streams before it waits for what is open."""

    def __init__(self, config: uvicorn.Config, dashboard: Dashboard) -> None:
        super().__init__(config)
        self._dashboard = dashboard

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        for session in self._dashboard.sessions.all():
            session.end("the dashboard has been stopped")
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
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving
        listening.socket.close()
