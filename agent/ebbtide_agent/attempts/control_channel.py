"""The agent's side of a supervisor's control connection receives statuses and sends orders, as JSON lines."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


class ControlChannel(asyncio.Protocol):
    """Calls `on_status` for each status that arrives, and `on_lost` once when the connection is lost."""

    def __init__(self, on_status: Callable[[dict[str, Any]], None], on_lost: Callable[[], None]) -> None:
        self._on_status = on_status
        self._on_lost = on_lost
        self._received = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            try:
                status = json.loads(line)
            except ValueError:
                log.error("event=bad-status line=%r", line[:200])
            else:
                self._on_status(status)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_lost()

    def send(self, content: dict[str, Any]) -> None:
        """Send one order; it is lost if the connection is."""
        if self._transport is not None:
            self._transport.write(json.dumps(content).encode() + b"\n")

    def close(self) -> None:
        """Close the connection; `on_lost` is called."""
        if self._transport is not None:
            self._transport.abort()
