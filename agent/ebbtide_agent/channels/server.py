"""Chooses a free port of the node's loopback, reports it to the supervisor, and becomes a server that listens on it.

``{port}`` in the command's arguments stands for the port. This runs in the job's environment, so it is started without
site-packages and imports the standard library only.
"""

import json
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from typing import Final

PLACEHOLDER: Final = "{port}"
_NOT_FOUND = 127


def main(command: Sequence[str]) -> int:
    """Run ``command`` in place of this process; return an exit code only if it cannot be run."""
    if shutil.which(command[0]) is not None:
        port = _free_port()
        _leave_word(port)
        os.execvp(command[0], [argument.replace(PLACEHOLDER, str(port)) for argument in command])
    sys.stderr.write(f"ebb: {command[0]} is not installed in the job's environment: it is not in its PATH\n")
    return _NOT_FOUND


def _leave_word(port: int) -> None:
    """Report the port. The supervisor's socket exists before any process, and keeps messages until they are read."""
    folder, name = os.path.split(os.environ["EBB_SOCKET"])
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    # Through the descriptor, because a socket's path must not have more than 107 bytes.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(json.dumps({"kind": "port", "port": port}).encode(), f"/proc/self/fd/{directory}/{name}")
    os.close(directory)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
