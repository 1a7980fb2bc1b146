"""Turns the stop signal into a flag that the training loop reads between two steps."""

import atexit
import os
import signal
import threading
import warnings
from types import FrameType


class StopRequest:
    """Records in `received` whether this process has been asked to stop; the first signal sets it for good."""

    def __init__(self) -> None:
        self.received = False
        self._held = threading.local()
        self._previous: signal._HANDLER = signal.SIG_DFL

    def listen(self, number: signal.Signals) -> None:
        """Catch the signal from now on, in place of the previous handler; outside the main thread only warn."""
        if threading.current_thread() is not threading.main_thread():
            message = f"ebbtide.job() was first called outside the main thread: {number.name} will not suspend this job"
            warnings.warn(message, RuntimeWarning, stacklevel=4)
            return
        self._previous = signal.signal(number, self._receive)
        atexit.register(self._finish, number)
        # A forked child (a DataLoader worker, a process of a pool) is not the job: a signal to it, such as its parent's
        # terminate(), has its effect as without Ebbtide, and at once even if the child is blocked outside Python. The
        # signal is held back around the fork because Python drops a signal that reaches a child that has just begun.
        os.register_at_fork(
            before=lambda: self._hold_back(number),
            after_in_parent=self._let_through,
            after_in_child=lambda: self._step_aside(number),
        )

    def catch_again(self, number: signal.Signals) -> None:
        """Put back the handler that a library has replaced with its own; outside the main thread do nothing."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(number) != self._receive:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = True

    def _finish(self, number: signal.Signals) -> None:
        """Ignore the signal from now on: Python restores its default action during shutdown, a second with torch.

        A job that is killed in that second, with all its work done, would look interrupted and be started once more.
        """
        if signal.getsignal(number) == self._receive:
            signal.signal(number, signal.SIG_IGN)

    def _hold_back(self, number: signal.Signals) -> None:
        self._held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {number})

    def _let_through(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._held.mask)

    def _step_aside(self, number: signal.Signals) -> None:
        if signal.getsignal(number) == self._receive:
            signal.signal(number, self._previous or signal.SIG_DFL)
        self._let_through()
