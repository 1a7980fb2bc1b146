"""The supervisor's end of the job socket, as a test hears it."""

import json
import os
import select
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any

DEADLINE_S = 30.0
_LARGEST = 64 * 1024


class Listener:
    """A datagram socket at `path`, however long that is, and the messages that arrived there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._socket.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)

    def __enter__(self) -> "Listener":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def arrived(self) -> list[dict[str, Any]]:
        """Everything that lies there, oldest first, but for what is told of the way to the first step."""
        return [message for message in self.all_arrived() if message["kind"] not in ("time", "start")]

    def all_arrived(self) -> list[dict[str, Any]]:
        """Everything that lies there, oldest first."""
        messages = []
        while True:
            try:
                messages.append(json.loads(self._socket.recv(_LARGEST)))
            except BlockingIOError:
                return messages

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The next message of this kind; those before it are dropped."""
        end = time.monotonic() + DEADLINE_S
        while select.select([self._socket], [], [], max(0.0, end - time.monotonic()))[0]:
            message: dict[str, Any] = json.loads(self._socket.recv(_LARGEST))
            if message["kind"] == kind:
                return message
        raise TimeoutError(f"no {kind} message within {DEADLINE_S} s")
