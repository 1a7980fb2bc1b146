"""Exchanges messages between a process of a job and the supervisor of its attempt.

A message to the supervisor is a datagram with one JSON object; few are answered. The request to leave comes over a
connection, of which each process that takes part has its own.
"""

import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 5.0
_LONGEST_ANSWER = 4096


def send(path: str | None, message: Mapping[str, object], *, timeout_s: float = PATIENCE_S) -> bool:
    """Send one message, and return whether it got through; wait at most `timeout_s` seconds for room in the socket.

    A missing, full or dead socket raises nothing, because a job must not suffer from what happens to its supervisor.
    The socket is looked up again for every message, so that a supervisor that comes back is found.
    """
    if path is None:
        return False
    data = json.dumps(message).encode()
    try:
        _send(Path(path), data, timeout_s)
    except OSError:
        return False
    return True


def ask(path: str | None, message: Mapping[str, object], *, timeout_s: float = PATIENCE_S) -> object:
    """Send one message and return its answer; None if no answer comes within `timeout_s` seconds, or sending fails."""
    if path is None:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.settimeout(timeout_s)
            connection.bind("")  # the kernel assigns an address, without which no answer could arrive
            _send_over(connection, Path(path), json.dumps(message).encode())
            return json.loads(connection.recv(_LONGEST_ANSWER))
    except (OSError, ValueError):
        return None


class Connection:
    """This process's own connection to the supervisor; if no supervisor accepts it, every method does nothing.

    A request has the shape `{"do": "leave", …}`. Requests of other kinds, which a newer supervisor may send, are passed
    over.
    """

    def __init__(self, path: str | None) -> None:
        """Connect to the socket that lies beside the datagram socket `path`; None: do not connect."""
        self._socket: socket.socket | None = None
        if path is None:
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(PATIENCE_S)
            _reach(Path(path).with_name("stop.sock"), connection.connect)
            connection.setblocking(False)
        except OSError:  # an older supervisor, which sends a signal instead
            connection.close()
        else:
            self._socket = connection
            os.register_at_fork(after_in_child=self.close)

    def answer(self) -> None:
        """Tell the supervisor that this process asks whether it should leave."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(b"answers")

    def is_asked_to_leave(self) -> bool:
        """Return whether a request to leave has come since the last call."""
        asked = False
        while self._socket is not None and not asked:
            try:
                message = self._socket.recv(_LONGEST_ANSWER)
            except BlockingIOError:
                break
            except OSError:
                message = b""
            if not message:  # the supervisor is gone
                self.close()
            asked = _asks_to_leave(message)
        return asked

    def close(self) -> None:
        """Close the connection, as in a forked child, which is not the job."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _asks_to_leave(message: bytes) -> bool:
    try:
        request = json.loads(message)
    except ValueError:
        return False
    return isinstance(request, dict) and request.get("do") == "leave"


def _send(path: Path, data: bytes, timeout_s: float) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.settimeout(timeout_s)
        _send_over(connection, path, data)


def _send_over(connection: socket.socket, path: Path, data: bytes) -> None:
    _reach(path, lambda address: connection.sendto(data, address))


def _reach(path: Path, use: Callable[[str], object]) -> None:
    """Call `use` with an address of the socket through its directory's descriptor: an address holds 107 bytes only."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
