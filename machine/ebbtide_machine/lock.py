"""Takes a file lock of which others find out whether somebody has it, by taking it for a moment themselves."""

import fcntl
import time
from contextlib import suppress
from typing import Final

LOOKED_AT_S: Final = 1.0
"""Seconds within which a process that only wanted to find out has let go."""
_PAUSE_S: Final = 0.02


def locked(descriptor: int) -> bool:
    """Take the exclusive `flock` of ``descriptor``, and return whether it was to be had; wait for a second at most."""
    deadline = time.monotonic() + LOOKED_AT_S
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_S)
