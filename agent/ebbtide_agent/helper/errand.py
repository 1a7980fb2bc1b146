"""A question that a process with one thread asks: it forks for it, and goes on."""

import math
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from ebbtide_agent.accounts import Account
from ebbtide_agent.helper import answer
from ebbtide_agent.helper.answer import Unknown
from ebbtide_agent.helper.confining import confine

T = TypeVar("T")

_LARGEST_READ = 256 * 1024
_MOMENT_S = 0.05
_pids: set[int] = set()


def on_their_way() -> frozenset[int]:
    """The processes of this process's errands that it has not buried: they are nobody's work but ours."""
    return frozenset(_pids)


def buried(pid: int) -> bool:
    """To be told of a process that was reaped; whether it was one of an errand."""
    known = pid in _pids
    _pids.discard(pid)
    return known


class Errand(Generic[T]):
    """One task on its way. Whoever reaps children may reap its process like any other."""

    def __init__(
        self,
        task: Callable[..., T],
        *arguments: Any,
        account: Account | None,
        within_s: float,
        descriptors: Sequence[int] = (),
    ) -> None:
        """The task gets the numbers of the `descriptors`, which stay ours, after its arguments. Raises OSError."""
        readable, writable = os.pipe2(os.O_CLOEXEC)
        me = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(readable)
            os.close(writable)
            raise
        if self.pid == 0:
            _carry_out(task, [*arguments, *descriptors], account, writable, descriptors, me)
        _pids.add(self.pid)
        self._process = os.pidfd_open(self.pid)  # nobody has reaped it yet, so it is this very process
        os.close(writable)
        os.set_blocking(readable, False)
        self._readable = readable
        self._inbox = b""
        self._late = False
        self.deadline = time.monotonic() + within_s

    def fileno(self) -> int:
        """Becomes readable when there is something to `hear`."""
        return self._readable

    def hear(self) -> bool:
        """Take in what has come; whether all that will ever come is there."""
        try:
            data = os.read(self._readable, _LARGEST_READ)
        except BlockingIOError:
            data = None
        self._inbox += data or b""
        if data == b"" or len(self._inbox) > answer.LARGEST:
            return True
        if time.monotonic() < self.deadline:
            return False
        self._late = True
        return True

    def end(self) -> T | Unknown:
        """The answer, if all has come. The process is killed, and may be reaped any time later, or never.

        Raises the OSError that the task raised.
        """
        self.drop()
        if self._late:
            return Unknown("no answer in time")
        found: T | Unknown = answer.read(self._inbox)
        return found

    def bury(self) -> None:
        """Reap its process, which has answered, if that is gone in a moment."""
        with suppress(ChildProcessError):
            until = time.monotonic() + _MOMENT_S
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                if time.monotonic() >= until:
                    return
                time.sleep(_MOMENT_S / 100)
        _pids.discard(self.pid)

    def drop(self) -> None:
        """Nobody wants to know any more."""
        if self._readable >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            os.close(self._process)
            os.close(self._readable)
            self._readable = -1

    def wait(self) -> T | Unknown:
        """The answer, waited for until the deadline. Raises the OSError that the task raised."""
        while not self.hear():
            ready = select.poll()
            ready.register(self._readable, select.POLLIN)
            left_s = self.deadline - time.monotonic()
            ready.poll(None if left_s == math.inf else 1000 * max(0.0, left_s))
        return self.end()


def _carry_out(
    task: Callable[..., Any],
    arguments: list[Any],
    account: Account | None,
    out: int,
    descriptors: Sequence[int],
    parent: int,
) -> None:
    """In the new process, to its end."""
    try:
        confine(account, {out, *descriptors}, parent)
        content = memoryview(answer.answer_of(task, arguments))
        while content:
            content = content[os.write(out, content) :]
    finally:
        os._exit(0)
