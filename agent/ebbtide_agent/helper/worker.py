"""Keeps a process that carries out one task after the other for a process with one thread.

It is forked before any task waits for it, so that later only the question and its answer take time.
"""

import os
import pickle
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.helper import answer
from ebbtide_agent.helper.confining import confine
from ebbtide_agent.helper.forking import ForkedProcess

LARGEST: Final = 64 * 1024
"""Most bytes of a question, which waits in the socket; a larger one needs a process of its own."""


class Worker:
    """A worker process of an account. It starts at the first question if not before, and again if it is gone."""

    def __init__(self, account: Account | None) -> None:
        self.account = account
        self._process: ForkedProcess | None = None
        self._channel: socket.socket | None = None
        self._busy = False

    def start(self) -> None:
        """Fork the process, so that it gets ready before anything is asked. Raises OSError."""
        self.end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            try:
                self._process = ForkedProcess(lambda parent: _serve(theirs, self.account, parent))
            except OSError:
                ours.close()
                raise
        self._channel = ours

    def take(self, task: Callable[..., Any], arguments: tuple[Any, ...], out: int) -> bool:
        """Have the worker carry out the task and write the answer to `out`; return whether it does so now.

        The descriptor stays the caller's. Raises OSError if there can be no process.
        """
        question = pickle.dumps((task, arguments))
        if self._busy or len(question) > LARGEST:
            return False
        if not self._hand_over(question, out):
            self.start()
            if not self._hand_over(question, out):
                return False
        self._busy = True
        return True

    def has_answered(self) -> None:
        """Note that the worker has nothing to do any more."""
        self._busy = False

    def end(self) -> None:
        """Kill the process, whatever it does."""
        if self._process is not None and self._channel is not None:
            self._process.kill()
            self._process.close()
            self._channel.close()
        self._process = self._channel = None
        self._busy = False

    def _hand_over(self, question: bytes, out: int) -> bool:
        if self._process is None or self._channel is None:
            return False
        with suppress(OSError):
            self._process.signal(signal.SIGCONT)  # its user, or a swap, may have stopped the process
            return socket.send_fds(self._channel, [question], [out]) == len(question)
        return False


def _serve(channel: socket.socket, account: Account | None, parent: int) -> None:
    confine(account, {channel.fileno()}, parent)
    while True:
        # The asking process has all rights here, so its pickle is trusted; the answer is not, so it is JSON.
        question, descriptors, _, _ = socket.recv_fds(channel, LARGEST, 1)
        if not question:
            return
        task, arguments = pickle.loads(question)
        [out] = descriptors
        answer.tell(out, answer.answer_of(task, list(arguments)))
        os.close(out)
