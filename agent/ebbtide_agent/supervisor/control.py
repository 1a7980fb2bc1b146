"""Serve the supervisor's control socket: it takes orders as JSON lines, and sends the whole status whenever that
changes."""

import json
import selectors
import socket
from collections.abc import Callable
from typing import Any

_LONGEST_LINE = 64 * 1024
_LAST_WORDS_S = 1.0


class AgentConnections:
    """All connections of agents to this supervisor; agents may connect and leave at any time."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listener: socket.socket,
        obey: Callable[[dict[str, Any]], None],
    ) -> None:
        self._selector = selector
        self._listener = listener
        self._obey = obey
        self._line = b""
        self._clients: set[_Client] = set()
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def adopt(self, connection: socket.socket, received: bytes) -> None:
        """Serve a connection, of which `received` has been read already."""
        connection.setblocking(False)
        client = _Client(connection, received)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._serve(client))
        self._take_orders(client)
        self._send(client)

    def publish(self, status: dict[str, Any]) -> None:
        """Send the status to every connection; a slow reader gets only the newest."""
        self._line = json.dumps(status).encode() + b"\n"
        for client in list(self._clients):
            client.is_current = False
            self._send(client)

    def close(self) -> None:
        """Wait up to a second for each connection to take what is not sent yet, then close all."""
        for client in list(self._clients):
            client.connection.settimeout(_LAST_WORDS_S)
            self._send(client)
            client.connection.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        self.adopt(connection, b"")

    def _serve(self, client: "_Client") -> None:
        try:
            data = client.connection.recv(_LONGEST_LINE)
        except BlockingIOError:
            data = None
        except OSError:
            data = b""
        if data == b"" or len(client.inbox) > _LONGEST_LINE:
            self._drop(client)
            return
        client.inbox += data or b""
        self._take_orders(client)
        self._send(client)

    def _take_orders(self, client: "_Client") -> None:
        *lines, client.inbox = client.inbox.split(b"\n")
        for line in lines:
            try:
                order = json.loads(line)
            except ValueError:
                continue
            if isinstance(order, dict):
                self._obey(order)

    def _send(self, client: "_Client") -> None:
        if not client.outbox and not client.is_current:
            client.outbox, client.is_current = self._line, True
        try:
            while client.outbox:
                client.outbox = client.outbox[client.connection.send(client.outbox) :]
                if not client.outbox and not client.is_current:
                    client.outbox, client.is_current = self._line, True
        except (BlockingIOError, TimeoutError):
            pass
        except OSError:
            self._drop(client)
            return
        self._await(client)

    def _await(self, client: "_Client") -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.outbox else 0)
        key = self._selector.get_key(client.connection)
        if key.events != wanted:
            self._selector.modify(client.connection, wanted, key.data)

    def _drop(self, client: "_Client") -> None:
        if client in self._clients:
            self._clients.discard(client)
            self._selector.unregister(client.connection)
            client.connection.close()


class _Client:
    def __init__(self, connection: socket.socket, received: bytes) -> None:
        self.connection = connection
        self.inbox = received
        self.outbox = b""
        self.is_current = False  # whether the newest status is in the outbox or sent
