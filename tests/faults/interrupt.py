"""Ctrl-C and SIGTERM end a program by way of its clean-up."""

import contextlib
import signal
from collections.abc import Iterator

EXIT_INTERRUPTED = 130


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """Leave the block when a signal asks to end, after all that is `finally` in it; a second one changes nothing."""

    def end(number: int, frame: object) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)
        raise KeyboardInterrupt

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, end)
    with contextlib.suppress(KeyboardInterrupt):
        yield
