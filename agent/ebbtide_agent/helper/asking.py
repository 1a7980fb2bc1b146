"""Asks questions for the agent, from any thread, or from its event loop, which goes on meanwhile."""

import asyncio
import atexit
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from ebbtide_machine.threads import on_daemon_thread

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.helper import answer
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.processes.isolated import package_roots

T = TypeVar("T")

# The server is isolated from what the agent's user has set or installed, so it is given the paths to our packages.
_BOOT = """
import sys
sys.path += sys.argv[2:]
from ebbtide_agent.helper.serving import main
main(int(sys.argv[1]))
"""
_LARGEST_READ = 1024 * 1024
# How long the server may take to start, in addition to what the task may take; it is started once.
_START_S = 10.0


def ask(
    task: Callable[..., T],
    *arguments: Any,
    account: Account | None,
    within_s: float,
    descriptors: Sequence[int] = (),
) -> asyncio.Future[T | NoAnswer]:
    """Return a future of what `ask_and_wait` returns, for an event loop."""
    given = {"account": account, "within_s": within_s, "descriptors": descriptors}
    return on_daemon_thread(partial(ask_and_wait, task, *arguments, **given))  # type: ignore[arg-type]


def ask_and_wait(
    task: Callable[..., T],
    *arguments: Any,
    account: Account | None,
    within_s: float,
    descriptors: Sequence[int] = (),
) -> T | NoAnswer:
    """Run the task as `account`, and return its result as JSON has it; NoAnswer if it takes over `within_s` seconds.

    The task gets the numbers of copies of the `descriptors` after its arguments. Raises the OSError that it raised.
    """
    header = {
        "task": f"{task.__module__}:{task.__qualname__}",
        "account": None if account is None else asdict(account),
        "within_s": within_s,
    }
    began = time.monotonic()
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            try:
                _server.send(json.dumps(header).encode(), [theirs.fileno(), *descriptors])
            except OSError as error:
                return NoAnswer(f"there is no process to ask: {error}")
        try:
            found = _exchange(ours, json.dumps(arguments).encode(), within_s)
        except TimeoutError:
            return NoAnswer("no answer in time")
        except OSError as error:
            return NoAnswer(f"no answer: {error}")
    if not found and time.monotonic() - began >= within_s:
        return NoAnswer("no answer in time")  # it was killed just before the time was checked here
    value: T | NoAnswer = answer.read(found)
    return value


def _exchange(channel: socket.socket, arguments: bytes, within_s: float) -> bytes:
    deadline = time.monotonic() + within_s
    channel.settimeout(within_s)
    with suppress(BrokenPipeError):  # it may have answered at once
        channel.sendall(arguments)
        channel.shutdown(socket.SHUT_WR)
    found = b""
    while len(found) <= answer.LARGEST:
        channel.settimeout(max(0.001, deadline - time.monotonic()))
        data = channel.recv(_LARGEST_READ)
        if not data:
            break
        found += data
    return found


class _HelperProcess:
    """The process that forks for the agent. It is started at the first question, and again if it has died."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._owner = 0

    def send(self, header: bytes, descriptors: Sequence[int]) -> None:
        """Send a question to the process, which is started if need be. Raises OSError."""
        with self._turn:
            if self._socket is None or self._owner != os.getpid():
                self._start()
            try:
                self._hand_over(header, descriptors)
            except (BrokenPipeError, ConnectionResetError):
                self._start()
                self._hand_over(header, descriptors)

    def _hand_over(self, header: bytes, descriptors: Sequence[int]) -> None:
        assert self._socket is not None, "_start() comes first"
        socket.send_fds(self._socket, [header], list(descriptors))

    def _start(self) -> None:
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_START_S)
        with theirs:
            command = [sys.executable, "-I", "-S", "-c", _BOOT, str(theirs.fileno()), *package_roots()]
            self._process = subprocess.Popen(
                command,
                cwd="/",
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._socket, self._owner = ours, os.getpid()

    def close(self) -> None:
        """End the process, and whatever it has started."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()  # it ends at once, because it waits for no other process
        self._process = self._socket = None


_server = _HelperProcess()
atexit.register(_server.close)
