"""Messages from a job to the supervisor of its attempt: a JSON object per datagram, few of which are answered."""

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

PATIENCE_S = 5.0
_LONGEST_ANSWER = 4096


def send(path: str | None, message: Mapping[str, object], *, timeout_s: float = PATIENCE_S) -> bool:
    """Send one message, waiting at most `timeout_s` (0: not at all) for room; False if it did not get through.

    Never raises for a missing, full or dead socket: a job must not suffer from what happens to its supervisor. The
    socket is looked up again for every message, so that a supervisor that comes back is found.
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
    """Send one message and return its answer; None if there is none, for whatever reason."""
    if path is None:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.settimeout(timeout_s)
            connection.bind("")  # the kernel finds an address, or the answer could not find us
            _send_over(connection, Path(path), json.dumps(message).encode())
            return json.loads(connection.recv(_LONGEST_ANSWER))
    except (OSError, ValueError):
        return None


def _send(path: Path, data: bytes, timeout_s: float) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.settimeout(timeout_s)
        _send_over(connection, path, data)


def _send_over(connection: socket.socket, path: Path, data: bytes) -> None:
    # A socket's address holds 107 bytes; through the directory's descriptor a path of any length fits.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.sendto(data, f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
