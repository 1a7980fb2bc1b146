"""Ask the job's processes that take part through the SDK to leave, each over a connection of its own.

The request reaches them whatever started them and whatever process is above them. Their messages are not trusted:
message size and number of connections are limited, and only descendants of this process are waited for.
"""

import json
import os
import selectors
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ebbtide_machine.process import Identity

from ebbtide_agent.processes.process_tree import is_below
from ebbtide_agent.supervisor.leaving.descriptors import part_of_descriptors

MOST: Final = 1024
"""Connections, if half of this process's descriptors are enough for them."""
_LARGEST_MESSAGE: Final = 4096
_CREDENTIALS: Final = struct.Struct("3i")


@dataclass(slots=True, eq=False)
class _Participant:
    connection: socket.socket
    process: Identity | None  # None: it is not below this process, as in a container that another program runs
    answers: bool = False


class Participants:
    """All processes that are connected; each counts until the process or its connection ends."""

    def __init__(
        self, selector: selectors.BaseSelector, listener: socket.socket, joined: Callable[[int], None]
    ) -> None:
        """`joined` is called with the pid of a process that says that it answers; `listener` must not block."""
        self._selector = selector
        self._listener = listener
        self._joined = joined
        self._all: set[_Participant] = set()
        self._most = min(MOST, part_of_descriptors(2))
        self._request: bytes = b""  # the request to leave, once there is one; later connections get it too
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def answering(self) -> frozenset[int]:
        """Return the pids of the live processes that ask whether they should leave."""
        processes = [one.process for one in self._all if one.process is not None and one.answers]
        # A connection may outlive its process, because children that the process forked have it too.
        return frozenset(process.pid for process in processes if process.is_alive())

    def tell_all(self, grace_s: float) -> None:
        """Ask all connected processes to leave, and those that connect later."""
        self._request = json.dumps({"do": "leave", "grace_s": grace_s}).encode()
        for one in list(self._all):
            self._tell(one)

    def close(self) -> None:
        """Close all connections and the listener."""
        for one in list(self._all):
            self._drop(one)
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        if len(self._all) >= self._most:
            connection.close()
            return
        connection.setblocking(False)
        one = _Participant(connection, _peer(connection))
        self._all.add(one)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._receive(one))
        self._tell(one)

    def _receive(self, one: _Participant) -> None:
        try:
            message = one.connection.recv(_LARGEST_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._drop(one)
        elif message == b"answers" and not one.answers:
            one.answers = True
            if one.process is not None:
                self._joined(one.process.pid)

    def _tell(self, one: _Participant) -> None:
        if not self._request:
            return
        try:
            one.connection.send(self._request)
        except BlockingIOError:
            pass  # the process has not read an earlier request yet
        except OSError:
            self._drop(one)

    def _drop(self, one: _Participant) -> None:
        if one in self._all:
            self._all.discard(one)
            self._selector.unregister(one.connection)
            one.connection.close()


def _peer(connection: socket.socket) -> Identity | None:
    """Return the process that connected, if it is below this process."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid = _CREDENTIALS.unpack(data)[0]
    process = Identity.of(pid) if pid > 0 else None
    return process if process is not None and is_below(pid, os.getpid()) else None
