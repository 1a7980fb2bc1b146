"""The stop signal, turned into a flag that the training loop asks for between two steps."""

import os
import signal
import threading
import warnings
from types import FrameType


class StopRequest:
    """Whether this process has been asked to stop; set by the signal, for good, however often it comes."""

    def __init__(self) -> None:
        self.received = False
        self._pid = os.getpid()
        self._previous: signal._HANDLER = signal.SIG_DFL

    def listen(self, number: signal.Signals) -> None:
        """Catch the signal from now on, in place of the handler there was; needs the main thread, else warns."""
        if threading.current_thread() is not threading.main_thread():
            message = f"ebbtide.job() was first called outside the main thread: {number.name} will not suspend this job"
            warnings.warn(message, RuntimeWarning, stacklevel=4)
            return
        self._previous = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self.received = True
            return
        # A forked child (a DataLoader worker, a process pool) inherits this handler but is not the job: whoever
        # signals it, its parent's terminate() for one, gets what would happen without us.
        signal.signal(number, self._previous or signal.SIG_DFL)
        signal.raise_signal(number)
