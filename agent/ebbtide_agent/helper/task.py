"""Asks a question for a process with one thread, which forks for it or uses a worker, and goes on meanwhile."""

import math
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.helper import answer
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.helper.confining import confine
from ebbtide_agent.helper.forking import ForkedProcess
from ebbtide_agent.helper.worker import Worker

T = TypeVar("T")

_LARGEST_READ = 256 * 1024


class HelperTask(Generic[T]):
    """One task that is being carried out by another process."""

    def __init__(
        self,
        task: Callable[..., T],
        *arguments: Any,
        account: Account | None,
        within_s: float,
        descriptors: Sequence[int] = (),
        worker: Worker | None = None,
    ) -> None:
        """Start the task, which gets the numbers of the `descriptors` after its arguments. Raises OSError.

        The descriptors stay the caller's. A `worker` of the account carries the task out if it can, and is ended if it
        does not come back in time. If its user kills it meanwhile, a new process begins the task again, so a task can
        be carried out twice.
        """
        self._fork = partial(_forked, task, arguments, account, descriptors)
        self._worker: Worker | None = None
        self._process: ForkedProcess | None = None

        def start(writable: int) -> None:
            if worker is not None and not descriptors and worker.take(task, arguments, writable):
                self._worker = worker
            else:
                self._start_process(writable)

        readable = _piped(start)
        self._ready = select.epoll()
        self._listen_to(readable)
        self._inbox = b""
        self._late = False
        self._has_answered = False
        self.deadline = time.monotonic() + within_s

    @property
    def pid(self) -> int | None:
        """Pid of the task's own process, or None if a worker carries it out."""
        return None if self._process is None else self._process.pid

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when there is something to `receive`."""
        return self._ready.fileno()

    def receive(self) -> bool:
        """Take in what has come, and return whether that is all, or the deadline is over."""
        try:
            data = os.read(self._readable, _LARGEST_READ)
        except BlockingIOError:
            data = None
        self._inbox += data or b""
        self._has_answered = data == b"" and bool(self._inbox)
        is_all = data == b"" or len(self._inbox) > answer.LARGEST
        if is_all and (self._has_answered or not self._is_asked_again()):
            return True
        if time.monotonic() < self.deadline:
            return False
        self._late = True
        return True

    def _is_asked_again(self) -> bool:
        """Start a process of the task's own after a worker that ended without an answer; return whether it runs."""
        if self._worker is None or self._inbox:
            return False
        self._worker.end()
        self._worker = None
        with suppress(OSError):  # e.g. there can be no further process, and the answer is unknown
            readable = _piped(self._start_process)
            self._ready.unregister(self._readable)
            os.close(self._readable)
            self._listen_to(readable)
            return True
        return False

    def _start_process(self, writable: int) -> None:
        self._process = self._fork(writable)

    def _listen_to(self, readable: int) -> None:
        os.set_blocking(readable, False)
        self._ready.register(readable, select.EPOLLIN)
        self._readable = readable

    def end(self) -> T | NoAnswer:
        """Return the answer that has come, or NoAnswer. Raises the OSError that the task raised.

        A process of the task's own is killed, and may be reaped at any time later, or never.
        """
        self.drop()
        if self._late:
            return NoAnswer("no answer in time")
        found: T | NoAnswer = answer.read(self._inbox)
        return found

    def wake(self) -> None:
        """Continue the task's own process, which its user, or a swap, may have stopped."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.signal(signal.SIGCONT)

    def reap(self) -> None:
        """Reap the task's own process, which has answered, if it ends in a moment."""
        if self._process is not None:
            self._process.reap()

    def drop(self) -> None:
        """Give the task up: kill its own process, or its worker unless that has answered."""
        if self._readable < 0:
            return
        os.close(self._readable)
        self._ready.close()
        self._readable = -1
        if self._process is not None:
            self._process.kill()
            self._process.close()
        elif self._worker is not None and self._has_answered:
            self._worker.has_answered()
        elif self._worker is not None:
            self._worker.end()

    def wait(self) -> T | NoAnswer:
        """Wait for the answer, at most until the deadline, and return it. Raises the OSError that the task raised."""
        while not self.receive():
            left_s = self.deadline - time.monotonic()
            self._ready.poll(None if left_s == math.inf else max(0.0, left_s))
        return self.end()


def _piped(start: Callable[[int], None]) -> int:
    """Start something that writes into a new pipe, and return the end to read from. Raises OSError."""
    readable, writable = os.pipe2(os.O_CLOEXEC)
    try:
        start(writable)
    except OSError:
        os.close(readable)
        raise
    finally:
        os.close(writable)
    return readable


def _forked(
    task: Callable[..., Any],
    arguments: tuple[Any, ...],
    account: Account | None,
    descriptors: Sequence[int],
    out: int,
) -> ForkedProcess:
    def carry_out(parent: int) -> None:
        confine(account, {out, *descriptors}, parent)
        answer.tell(out, answer.answer_of(task, [*arguments, *descriptors]))
        os.close(out)  # before the process's memory is freed, which takes a while

    return ForkedProcess(carry_out)
