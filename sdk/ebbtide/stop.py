"""The stop signal, turned into a flag that the training loop asks for between two steps."""

import atexit
import os
import signal
import threading
import warnings
from types import FrameType


class StopRequest:
    """Whether this process has been asked to stop; set by the signal, for good, however often it comes."""

    def __init__(self) -> None:
        self.received = False
        self._held = threading.local()
        self._previous: signal._HANDLER = signal.SIG_DFL

    def listen(self, number: signal.Signals) -> None:
        """Catch the signal from now on, in place of the handler there was; needs the main thread, else warns."""
        if threading.current_thread() is not threading.main_thread():
            message = f"ebbtide.job() was first called outside the main thread: {number.name} will not suspend this job"
            warnings.warn(message, RuntimeWarning, stacklevel=4)
            return
        self._previous = signal.signal(number, self._receive)
        atexit.register(self._finish, number)
        # A forked child (a DataLoader worker, one of a process pool) is not the job: whoever signals it, its parent's
        # terminate() for one, gets what would happen without us, and at once also where it is blocked outside Python.
        # The signal is held back around the fork because Python drops what reaches a child that has just begun.
        os.register_at_fork(
            before=lambda: self._hold_back(number),
            after_in_parent=self._let_through,
            after_in_child=lambda: self._step_aside(number),
        )

    def catch_again(self, number: signal.Signals) -> None:
        """Put back the handler that a library replaced with its own; nothing outside the main thread."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(number) != self._receive:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = True

    def _finish(self, number: signal.Signals) -> None:
        """Ignore the signal: Python puts the default action back while it shuts down, which takes torch a second.

        Killed then, a job that has done everything would look like one that was interrupted, and be started once more.
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
