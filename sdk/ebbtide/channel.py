"""One-way messages from a job to the supervisor of its attempt: a JSON object per datagram."""

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

PATIENCE_S = 5.0


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


def _send(path: Path, data: bytes, timeout_s: float) -> None:
    # A socket's address holds 107 bytes; through the directory's descriptor a path of any length fits.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.settimeout(timeout_s)
            connection.sendto(data, f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
