"""What a supervisor waits for before its attempt runs: helpers' processes, as long as nobody has asked it to stop.

Orders are left for whoever watches the attempt later. But when a stop's grace period ends, nothing is waited for.
"""

import json
import math
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.helper.answer import Unknown
from ebbtide_agent.helper.errand import Errand
from ebbtide_agent.helper.worker import Worker
from ebbtide_agent.supervisor.lease import boottime
from ebbtide_agent.supervisor.program import Program
from ebbtide_agent.supervisor.status import Refused

# To find and verify the checkpoint that an attempt goes on from may take long.
_PREPARE_S = 3600.0
# What waits for time to go by does not see that the machine slept.
_LONGEST_S = 1.0
_LARGEST_READ = 64 * 1024


class Waiting:
    """The channel of whoever ordered the attempt, until the attempt runs."""

    def __init__(
        self, channel: socket.socket, received: bytes, term_s: float | None, leased_at: float, worker: Worker
    ) -> None:
        """`term_s` after the master was heard, which was `leased_at`, nothing is waited for either."""
        self._channel = channel
        self._worker = worker
        self._received = received
        self._term_s = term_s
        self._leased_at = leased_at
        self._open = True
        self._lines = 0  # that were looked at
        self._end_by = math.inf
        self._look()

    def ask(self, task: Callable[..., Any], arguments: tuple[Any, ...], account: Account | None) -> Any:
        """What the task says. Raises Refused if it does not come back in time, or the OSError that it raised."""
        worker = self._worker if account == self._worker.account else None
        errand = Errand(task, *arguments, account=account, within_s=_PREPARE_S, worker=worker)
        if not self._wait(errand, errand.hear):
            errand.drop()
            raise self._refusal("its files do not answer")
        try:
            answer = errand.end()
        finally:
            errand.bury()
        if isinstance(answer, Unknown):
            raise self._refusal(f"its files do not answer: {answer.reason}")
        return answer

    def until(self, program: Program) -> None:
        """Wait until it is settled whether the program runs. Raises Refused if nobody can wait for that."""
        if not self._wait(program, program.hear):
            raise self._refusal("its program cannot be executed in time")

    def _wait(self, source: Errand[Any] | Program, settled: Callable[[], bool]) -> bool:
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
        """When was sent what the master acknowledged last, as far as it was said (CLOCK_BOOTTIME)."""
        while self._open and select.select([self._channel], [], [], 0.0)[0]:
            self._receive()
        return self._leased_at

    def received(self) -> bytes:
        """All that has come, for whoever goes on with it, and what is left of the time that a stop allowed first."""
        if self._end_by == math.inf:
            return self._received
        stop = {"do": "stop", "grace_s": max(0.0, self._end_by - time.monotonic())}
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
                    self._end_by = min(self._end_by, time.monotonic() + grace_s)
                case {"do": "lease", "at": int() | float() as at}:
                    self._leased_at = max(self._leased_at, at)
        self._lines = len(lines)
