"""Wait for helper processes before an attempt runs, until a stop's grace period or the attempt's lease ends.

Orders that come meanwhile are kept for the attempt's Watch.
"""

import json
import math
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.helper.task import HelperTask
from ebbtide_agent.helper.worker import Worker
from ebbtide_agent.supervisor.launching.program import Program
from ebbtide_agent.supervisor.lease import boottime
from ebbtide_agent.supervisor.status import Refused

# Seconds; to find and verify the checkpoint that an attempt resumes from may take long.
_PREPARE_S = 3600.0
# The most seconds of one wait, because a wait does not notice that the machine slept.
_LONGEST_S = 1.0
_LARGEST_READ = 64 * 1024


@dataclass(slots=True)
class _Channel:
    """A connection from an agent, and all that it has received."""

    connection: socket.socket
    received: bytes = b""
    open: bool = True
    lines: int = 0  # lines that were looked at


class LaunchWait:
    """Serves the channel that the order came from, and those of later agents, until the attempt runs."""

    def __init__(
        self,
        channel: socket.socket,
        received: bytes,
        listener: socket.socket,
        term_s: float | None,
        leased_at: float,
        worker: Worker,
    ) -> None:
        """`leased_at` is when the master was last heard; `term_s` seconds later nothing is waited for any more.

        Later agents connect to the `listener`.
        """
        self._channels = [_Channel(channel, received)]
        self._listener = listener
        self._worker = worker
        self._term_s = term_s
        self._leased_at = leased_at
        self._end_by = math.inf
        self._fenced = False  # the first stop came because the node ends
        listener.setblocking(False)
        self._look(self._channels[0])

    def ask(self, task: Callable[..., Any], arguments: tuple[Any, ...], account: Account | None) -> Any:
        """Run the task, and return its answer. Raises Refused if none comes in time, or the OSError that it raised."""
        worker = self._worker if account == self._worker.account else None
        helper_task = HelperTask(task, *arguments, account=account, within_s=_PREPARE_S, worker=worker)
        if not self._wait(helper_task, helper_task.receive):
            helper_task.drop()
            raise self._refusal("its files do not answer")
        try:
            answer = helper_task.end()
        finally:
            helper_task.reap()
        if isinstance(answer, NoAnswer):
            raise self._refusal(f"its files do not answer: {answer.reason}")
        return answer

    def until(self, program: Program) -> None:
        """Wait until it is settled whether the program runs. Raises Refused if that takes too long."""
        if not self._wait(program, program.poll):
            raise self._refusal("its program cannot be executed in time")

    def _wait(self, source: HelperTask[Any] | Program, settled: Callable[[], bool]) -> bool:
        while not settled():
            left_s = self._left_s()
            if left_s <= 0.0:
                return False
            self._listen(1000 * min(left_s, _LONGEST_S) + 1, source)
        return True

    def _listen(self, within_ms: float, source: HelperTask[Any] | Program | None = None) -> bool:
        """Wait until an agent says something or connects, or the source is ready; return whether one of that came."""
        ready = select.poll()
        for one in (source, self._listener, *(one.connection for one in self._channels if one.open)):
            if one is not None:
                ready.register(one, select.POLLIN)
        found = {descriptor for descriptor, _ in ready.poll(within_ms)}
        for channel in self._channels:
            if channel.open and channel.connection.fileno() in found:
                self._receive(channel)
        if self._listener.fileno() in found:
            with suppress(BlockingIOError, ConnectionAbortedError):
                self._channels.append(_Channel(self._listener.accept()[0]))
        return bool(found)

    def _left_s(self) -> float:
        of_lease = math.inf if self._term_s is None else self._leased_at + self._term_s - boottime()
        return min(of_lease, self._end_by - time.monotonic())

    def _refusal(self, reason: str) -> Refused:
        asked = "it was asked to stop before it could start: " if self._end_by < math.inf else ""
        return Refused(f"{asked}{reason}")

    def leased_at(self) -> float:
        """Return when the message was sent that the master acknowledged last, as far as known here (CLOCK_BOOTTIME)."""
        while self._listen(0.0):
            pass
        return self._leased_at

    def received(self) -> list[tuple[socket.socket, bytes]]:
        """Return the connections with all that each has received.

        What the first one has received follows a stop order with the grace period that is left, if there is one.
        """
        if self._end_by < math.inf:
            left_s = max(0.0, self._end_by - time.monotonic())
            stop = {"do": "stop", "grace_s": left_s, "fenced": self._fenced}
            self._channels[0].received = json.dumps(stop).encode() + b"\n" + self._channels[0].received
        return [(channel.connection, channel.received) for channel in self._channels]

    def _receive(self, channel: _Channel) -> None:
        try:
            data = channel.connection.recv(_LARGEST_READ)
        except OSError:
            data = b""
        channel.open = bool(data)
        channel.received += data
        self._look(channel)

    def _look(self, channel: _Channel) -> None:
        lines = channel.received.split(b"\n")[:-1]
        for line in lines[channel.lines :]:
            try:
                order = json.loads(line)
            except ValueError:
                continue
            match order:
                case {"do": "stop", "grace_s": int() | float() as grace_s} if grace_s >= 0:
                    self._fenced |= self._end_by == math.inf and order.get("fenced") is True
                    self._end_by = min(self._end_by, time.monotonic() + grace_s)
                case {"do": "lease", "at": int() | float() as at}:
                    self._leased_at = max(self._leased_at, at)
        channel.lines = len(lines)
