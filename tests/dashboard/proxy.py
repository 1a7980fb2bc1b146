"""A small reverse proxy: it speaks TLS on loopback, and passes on what is below one path to a UNIX socket."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Proxy:
    """Keeps the path and the Host header, adds headers of its own, and serves nothing else of its host."""

    def __init__(self, certificate: Path, key: Path, socket: Path, below: str) -> None:
        self.port = 0
        self.outside: list[str] = []
        """Paths that somebody asked for that are not below that of the dashboard."""
        self.slow: dict[str, float] = {}
        """Paths whose answers are passed on so many seconds later."""
        self._socket, self._below = socket, below
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate, key)
        self._loop = asyncio.new_event_loop()
        self._ready, self._stopped = threading.Event(), asyncio.Event()

    @contextmanager
    def running(self) -> Iterator["Proxy"]:
        thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        thread.start()
        try:
            assert self._ready.wait(10)
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stopped.set)
            thread.join()
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopped.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.1)  # what was open is closed

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            first, *headers = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
            path = first.split()[1].partition("?")[0]
            if path == self._below or path.startswith(f"{self._below}/"):
                await self._pass_on(first, headers, reader, writer, self.slow.get(path, 0.0))
            else:
                self.outside.append(path)
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                await writer.drain()
        writer.close()

    async def _pass_on(
        self,
        first: str,
        headers: list[str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        delay_s: float,
    ) -> None:
        kept = [line for line in headers if not line.casefold().startswith(("connection:", "x-forwarded"))]
        own = ["connection: close", "x-forwarded-for: 127.0.0.1", "x-forwarded-proto: https"]
        there, onward = await asyncio.open_unix_connection(self._socket)
        try:
            onward.write("\r\n".join([first, *kept, *own, "", ""]).encode("latin-1"))
            given = dict(line.casefold().split(": ", 1) for line in headers)
            onward.write(await reader.readexactly(int(given.get("content-length", "0"))))
            tasks = [asyncio.create_task(self._pump(there, writer, delay_s)), asyncio.create_task(reader.read())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        finally:
            onward.close()

    async def _pump(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
        with suppress(OSError):
            await asyncio.sleep(delay_s)
            while data := await there.read(2**16):
                writer.write(data)
                await writer.drain()
