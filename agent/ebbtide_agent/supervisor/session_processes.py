"""Run processes of a session, which users start inside a running attempt.

They live as the attempt's own processes do, and do not count for its outcome. Each has a connection of its own, which
brings its standard streams and takes back how it ended. When the connection is closed, the process gets SIGHUP, then
SIGKILL. All of them end with the attempt.
"""

import fcntl
import json
import math
import os
import selectors
import signal
import socket
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.processes import process_tree
from ebbtide_agent.processes.cgroup import ControlGroup
from ebbtide_agent.supervisor.launching.program import ProcessSetup, Program

HANGUP_S: Final = 5.0
"""Seconds that a process has to end after SIGHUP."""
LARGEST_REQUEST: Final = 128 * 1024
_STREAMS = 3


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """Where processes of a session are requested, and what they get; the environment is the first process's."""

    listener: socket.socket  # of packets
    environment: Mapping[str, str]
    workdir: str
    lock: int  # that every live process of the job holds
    group: ControlGroup | None
    account: Account | None = None  # that they run as; None: this process's own


@dataclass(slots=True)
class _SessionProcess:
    connection: socket.socket
    program: Program
    kill_at: float = math.inf


class SessionProcesses:
    """All processes of sessions in one attempt."""

    def __init__(self, selector: selectors.BaseSelector, entry: SessionEntry) -> None:
        self._selector = selector
        self._entry = entry
        self._sessions: dict[int, _SessionProcess] = {}
        entry.listener.setblocking(False)
        selector.register(entry.listener, selectors.EVENT_READ, self._admit)

    @property
    def pids(self) -> frozenset[int]:
        """The pids of the processes that have not ended."""
        return frozenset(self._sessions)

    @property
    def kill_at(self) -> float:
        """When the next process whose connection was closed has to be killed, on the monotonic clock."""
        return min((process.kill_at for process in self._sessions.values()), default=math.inf)

    def kill_late(self) -> None:
        """Kill the processes that did not end in time after their connection was closed."""
        now = time.monotonic()
        for pid, process in self._sessions.items():
            if now >= process.kill_at:
                _signal_tree(pid, signal.SIGKILL)
                process.kill_at = now + HANGUP_S

    def reaped(self, pid: int, returncode: int) -> None:
        """Report how a process of a session ended; other processes are ignored."""
        process = self._sessions.get(pid)
        if process is not None and not process.program.is_settled:
            self._settle(pid, process)
        process = self._sessions.pop(pid, None)
        if process is not None:
            how = {"signal": -returncode} if returncode < 0 else {"exit_code": returncode}
            _answer(process.connection, how)
            self._dismiss(process.connection)

    def close(self) -> None:
        """Close the listener: no more processes are started."""
        self._selector.unregister(self._entry.listener)
        self._entry.listener.close()

    def _admit(self) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = self._entry.listener.accept()
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, partial(self._take, connection))

    def _take(self, connection: socket.socket) -> None:
        """Handle the one request of a connection, or its end."""
        try:
            request, streams, _, _ = socket.recv_fds(connection, LARGEST_REQUEST, _STREAMS)
        except BlockingIOError:
            return
        except OSError:
            request, streams = b"", []
        try:
            if request and len(streams) == _STREAMS:
                self._start(connection, json.loads(request), streams)
                return
        except (OSError, ValueError, LookupError, TypeError) as error:
            _answer(connection, {"error": _words(error)})
        finally:
            for stream in streams:
                os.close(stream)
        self._hang_up(connection)

    def _start(self, connection: socket.socket, request: dict[str, Any], streams: list[int]) -> None:
        stdin, stdout, stderr = streams
        terminal, account = bool(request["terminal"]), self._entry.account
        if account is not None:
            for stream in streams:
                os.fchown(stream, account.uid, -1)  # so that it may open /dev/stdin and the others anew
        program = Program(
            [str(argument) for argument in request["command"]],
            {**self._entry.environment, **request["env"]},
            ProcessSetup(self._entry.workdir, account, partial(_arrive, self._entry.group, terminal), session=True),
            (stdin, stdout, stderr),
            (self._entry.lock,),
            _explain,
        )
        process = self._sessions[program.pid] = _SessionProcess(connection, program)
        self._selector.register(program, selectors.EVENT_READ, partial(self._settle, program.pid, process))

    def _settle(self, pid: int, process: _SessionProcess) -> None:
        """Report that the program runs, or why it cannot, once that is known."""
        if process.program.is_settled:
            return
        descriptor = process.program.fileno()
        if not process.program.poll():
            return
        self._selector.unregister(descriptor)
        if process.program.failure is None:
            _answer(process.connection, {"pid": pid})
            return
        del self._sessions[pid]
        _answer(process.connection, {"error": process.program.failure[0]})
        self._dismiss(process.connection)

    def _hang_up(self, connection: socket.socket) -> None:
        self._dismiss(connection)
        for pid, process in self._sessions.items():
            if process.connection is connection:
                _signal_tree(pid, signal.SIGHUP)
                _signal_tree(pid, signal.SIGCONT)
                process.kill_at = time.monotonic() + HANGUP_S

    def _dismiss(self, connection: socket.socket) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection)
            connection.close()


def _arrive(group: ControlGroup | None, terminal: bool) -> None:
    """In the new process: enter the attempt's control group, and take the terminal as a session leader."""
    if group is not None:
        group.enter()
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _signal_tree(pid: int, signum: int) -> None:
    process_tree.signal_below(os.getpid(), [pid, *process_tree.descendants(pid)], signum)


def _answer(connection: socket.socket, content: dict[str, Any]) -> None:
    with suppress(OSError):
        connection.send(json.dumps(content).encode())


def _explain(error: Exception) -> list[str]:
    return [_words(error)]


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot start {error.filename or 'it'}: {error.strerror or error}"
    return f"cannot start it: {error}"
