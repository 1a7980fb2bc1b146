"""Ask NVML in a process of its own, because a lost GPU can hang or crash the process that asks.

The agent and this process exchange JSON lines over one socket:

    to it      {"gpus": "auto" or "fake", "state_dir", "xids": {uuid: xid}}, then {"read": uuid} or {"settings": uuid}
    from it    {"gpus", "links", "driver", "unnamed"}, or {"unavailable": why}; then to each request its answer

The process imports little, and ends with the agent, even while it hangs in the driver.
"""

import json
import logging
import os
import select
import socket
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from ebbtide_agent import agent_log
from ebbtide_agent.gpu.backend import GpuBackend
from ebbtide_agent.gpu.nvml import NvmlBackend, NvmlUnavailable, open_fake, open_nvml

log = logging.getLogger(__name__)


def main(descriptor: int) -> None:
    """Serve the socket until its other end is closed."""
    agent_log.configure()
    # The agent may be killed while either side sends.
    with socket.socket(fileno=descriptor) as agent, agent.makefile("rb") as lines, suppress(ConnectionError):
        threading.Thread(target=_end_with, args=(agent,), daemon=True).start()
        _serve(agent, lines)


def _serve(agent: socket.socket, lines: BinaryIO) -> None:
    try:
        backend = _open(json.loads(lines.readline()))
    except (NvmlUnavailable, ValueError, OSError) as error:
        _say(agent, {"unavailable": str(error)})
        return
    gpus = [asdict(gpu) for gpu in backend.gpus()]
    links = [asdict(link) for link in backend.links()]
    _say(agent, {"gpus": gpus, "links": links, "driver": asdict(backend.driver()), "unnamed": backend.unnamed})
    for line in lines:
        _say(agent, _answer(backend, json.loads(line)))


def _end_with(agent: socket.socket) -> None:
    """End this process as soon as the agent has, whatever the other thread does meanwhile."""
    hangup = select.poll()
    hangup.register(agent, select.POLLRDHUP)
    hangup.poll()
    os._exit(0)


def _open(order: dict[str, Any]) -> NvmlBackend:
    if order["gpus"] == "fake":
        return open_fake(Path(order["state_dir"]), order["xids"])
    return open_nvml(order["xids"])


def _answer(backend: GpuBackend, request: dict[str, str]) -> dict[str, Any]:
    try:
        match request:
            case {"read": uuid}:
                return asdict(backend.read(uuid))
            case {"settings": uuid}:
                return asdict(backend.settings(uuid))
    except Exception as error:  # of the driver's library, which may raise anything: it is reported to the agent
        log.exception("event=nvml-call-failed request=%r", request)
        return {"error": str(error) or type(error).__name__}
    return {"error": f"not a request: {request!r}"}


def _say(agent: socket.socket, content: dict[str, Any]) -> None:
    agent.sendall(json.dumps(content).encode() + b"\n")
