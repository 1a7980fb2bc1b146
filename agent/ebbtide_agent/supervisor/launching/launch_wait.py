"""Wait for helper processes before an attempt runs, until a stop's grace period or the attempt's lease ends.

Orders that come meanwhile are kept for the attempt's Watch.
"""

import json
import math
import select
import socket
import time
from collections.abc import Callable
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


class LaunchWait:
    """Serves the channel that the order came from, until the attempt runs."""

    def __init__(
        self, channel: socket.socket, received: bytes, term_s: float | None, leased_at: float, worker: Worker
    ) -> None:
        """`leased_at` is when the master was last heard; `term_s` seconds later nothing is waited for any more."""
        self._channel = channel
        self._worker = worker
        self._received = received
        self._term_s = term_s
        self._leased_at = leased_at
        self._open = True
        self._lines = 0  # lines that were looked at
        self._end_by = math.inf
        self._fenced = False  # the first stop came because the node ends
        self._look()

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
            ready = select.poll()
            ready.register(source, select.POLLIN)
            if self._open:
                ready.register(self._channel, select.POLLIN)
            found = ready.poll(1000 * min(left_s, _LONGEST_S) + 1)
            if any(descriptor == self._channel.fileno() for descriptor, _ in found):
                self._receive()
        return True

    def _left_s(self) -> float:
        of_lease = math.inf if self._term_s is None else self._leased_at + self._term_s - boottime()
        return min(of_lease, self._end_by - time.monotonic())

    def _refusal(self, reason: str) -> Refused:
        asked = "it was asked to stop before it could start: " if self._end_by < math.inf else ""
        return Refused(f"{asked}{reason}")

    def leased_at(self) -> float:
        """Return when the message was sent that the master acknowledged last, as far as known here (CLOCK_BOOTTIME)."""
        while self._open and select.select([self._channel], [], [], 0.0)[0]:
            self._receive()
        return self._leased_at

    def received(self) -> bytes:
        """Return all that the channel has received, after a stop order with the grace period that is left, if any."""
        if self._end_by == math.inf:
            return self._received
        left_s = max(0.0, self._end_by - time.monotonic())
        stop = {"do": "stop", "grace_s": left_s, "fenced": self._fenced}
        return json.dumps(stop).encode() + b"\n" + self._received

    def _receive(self) -> None:
        try:
            data = self._channel.recv(_LARGEST_READ)
        except OSError:
            data = b""
        self._open = bool(data)
        self._received += data
        self._look()

    def _look(self) -> None:
        lines = self._received.split(b"\n")[:-1]
        for line in lines[self._lines :]:
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
        self._lines = len(lines)
