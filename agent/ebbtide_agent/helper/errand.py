"""A question that a process with one thread asks: it forks for it, or has a worker that stays, and goes on."""

import math
import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.helper import answer
from ebbtide_agent.helper.answer import Unknown
from ebbtide_agent.helper.confining import confine
from ebbtide_agent.helper.forking import Forked
from ebbtide_agent.helper.worker import Worker

T = TypeVar("T")

_LARGEST_READ = 256 * 1024


class Errand(Generic[T]):
    """One task on its way."""

    def __init__(
        self,
        task: Callable[..., T],
        *arguments: Any,
        account: Account | None,
        within_s: float,
        descriptors: Sequence[int] = (),
        worker: Worker | None = None,
    ) -> None:
        """The task gets the numbers of the `descriptors`, which stay ours, after its arguments. Raises OSError.

        A `worker` of the account carries it out if it can, and is ended if it does not come back in time. If its user
        kills it meanwhile, a process of its own does: a task can be carried out twice.
        """
        self._fork = partial(_forked, task, arguments, account, descriptors)
        self._worker: Worker | None = None
        self._process: Forked | None = None
        readable, writable = os.pipe2(os.O_CLOEXEC)
        try:
            if worker is not None and not descriptors and worker.take(task, arguments, writable):
                self._worker = worker
            else:
                self._process = self._fork(writable)
        except OSError:
            os.close(readable)
            raise
        finally:
            os.close(writable)
        self._ready = select.epoll()
        self._listen_to(readable)
        self._inbox = b""
        self._late = False
        self._has_answered = False
        self.deadline = time.monotonic() + within_s

    @property
    def pid(self) -> int | None:
        """Of its own process, if it has one."""
        return None if self._process is None else self._process.pid

    def fileno(self) -> int:
        """Becomes readable when there is something to `hear`."""
        return self._ready.fileno()

    def hear(self) -> bool:
        """Take in what has come; whether all that will ever come is there."""
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
        """Whether a worker that ended without an answer has a process of its own follow it."""
        if self._worker is None or self._inbox:
            return False
        self._worker.end()
        self._worker = None
        with suppress(OSError):  # e.g. there can be no further process: nobody knows
            readable, writable = os.pipe2(os.O_CLOEXEC)
            try:
                self._process = self._fork(writable)
            except OSError:
                os.close(readable)
                raise
            finally:
                os.close(writable)
            self._ready.unregister(self._readable)
            os.close(self._readable)
            self._listen_to(readable)
            return True
        return False

    def _listen_to(self, readable: int) -> None:
        os.set_blocking(readable, False)
        self._ready.register(readable, select.EPOLLIN)
        self._readable = readable

    def end(self) -> T | Unknown:
        """The answer, if all has come. A process of its own is killed, and may be reaped any time later, or never.

        Raises the OSError that the task raised.
        """
        self.drop()
        if self._late:
            return Unknown("no answer in time")
        found: T | Unknown = answer.read(self._inbox)
        return found

    def bury(self) -> None:
        """Reap a process of its own, which has answered, if that is gone in a moment."""
        if self._process is not None:
            self._process.bury()

    def drop(self) -> None:
        """Nobody wants to know any more."""
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

    def wait(self) -> T | Unknown:
        """The answer, waited for until the deadline. Raises the OSError that the task raised."""
        while not self.hear():
            left_s = self.deadline - time.monotonic()
            self._ready.poll(None if left_s == math.inf else max(0.0, left_s))
        return self.end()


def _forked(
    task: Callable[..., Any],
    arguments: tuple[Any, ...],
    account: Account | None,
    descriptors: Sequence[int],
    out: int,
) -> Forked:
    def carry_out(parent: int) -> None:
        confine(account, {out, *descriptors}, parent)
        answer.tell(out, answer.answer_of(task, [*arguments, *descriptors]))
        os.close(out)  # before its memory is given back, which takes a while

    return Forked(carry_out)
