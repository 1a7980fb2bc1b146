"""Forks for an agent in a process that is small, and has one thread and a clean environment.

The agent cannot fork itself, because of gRPC's threads. For each question it sends a header with descriptors: first a
socket for the task's arguments and its answer, then those that the task is given.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.helper import answer
from ebbtide_agent.helper.confining import confine

MOST_DESCRIPTORS: Final = 16
LARGEST_HEADER: Final = 64 * 1024
# If so many processes of one account have not ended although they were killed, no more are started for it.
_MOST_STUCK = 8


@dataclass(slots=True)
class _Process:
    pid: int
    descriptor: int  # becomes readable when it has ended
    uid: int
    deadline: float
    late: bool = False


class _HelperServer:
    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._processes: dict[int, _Process] = {}

    def run(self) -> None:
        """Serve until the other end of the socket is closed."""
        while True:
            ready = select.poll()
            for descriptor in (self._agent.fileno(), *self._processes):
                ready.register(descriptor, select.POLLIN)
            found = {descriptor for descriptor, _ in ready.poll(self._timeout_ms())}
            self._kill_late()
            for descriptor in found & self._processes.keys():
                self._reap(descriptor)
            if self._agent.fileno() in found and not self._take():
                return

    def _timeout_ms(self) -> float | None:
        moments = [process.deadline for process in self._processes.values() if not process.late]
        return 1000 * max(0.0, min(moments) - time.monotonic()) + 1 if moments else None

    def _kill_late(self) -> None:
        now = time.monotonic()
        for process in self._processes.values():
            if now >= process.deadline and not process.late:
                process.late = True
                os.kill(process.pid, signal.SIGKILL)  # the pid is still its own, because only `_reap` reaps it

    def _reap(self, descriptor: int) -> None:
        os.waitpid(self._processes.pop(descriptor).pid, 0)
        os.close(descriptor)

    def _take(self) -> bool:
        header, descriptors, _, _ = socket.recv_fds(self._agent, LARGEST_HEADER, MOST_DESCRIPTORS)
        if not header:
            return False
        try:
            self._start(json.loads(header), descriptors)
        except (OSError, ValueError, LookupError, TypeError, ImportError, AttributeError) as error:
            _refuse(descriptors, f"cannot start its process: {error}")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _start(self, header: dict[str, Any], descriptors: list[int]) -> None:
        module, _, name = header["task"].partition(":")
        task = getattr(importlib.import_module(module), name)  # here, because the account may not be able to read it
        account = None if header["account"] is None else Account.from_json(header["account"])
        uid = 0 if account is None else account.uid
        stuck = Counter(process.uid for process in self._processes.values() if process.late)
        if stuck[uid] >= _MOST_STUCK:
            _refuse(descriptors, f"{stuck[uid]} processes that were asked before have not come back")
            return
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            _carry_out(task, account, descriptors, me)
        process = _Process(pid, os.pidfd_open(pid), uid, time.monotonic() + header["within_s"])
        self._processes[process.descriptor] = process


def main(descriptor: int) -> None:
    """Serve the agent at the other end of this socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the agent
    os.umask(0o077)
    gc.freeze()
    _HelperServer(socket.socket(fileno=descriptor)).run()


def _refuse(descriptors: list[int], reason: str) -> None:
    with suppress(OSError, IndexError):
        os.write(descriptors[0], json.dumps({"unknown": reason}).encode())


def _carry_out(task: Callable[..., Any], account: Account | None, descriptors: list[int], parent: int) -> None:
    """Carry out the task in the new process, and end that."""
    try:
        confine(account, descriptors, parent)
        channel, *given = descriptors
        arguments = b""
        while data := os.read(channel, 1 << 20):
            arguments += data
        answer.tell(channel, answer.answer_of(task, [*json.loads(arguments), *given]))
    finally:
        os._exit(0)
