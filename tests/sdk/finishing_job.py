"""A job that has done all its work and takes its time to shut down: until standard input ends."""

import os
from collections.abc import Callable

import ebbtide


class SlowToGo:
    """Like torch's objects, which are taken down long after the last line of the script."""

    def __del__(
        self, write: Callable[[int, bytes], int] = os.write, read: Callable[[int, int], bytes] = os.read
    ) -> None:
        write(1, b"leaving\n")
        read(0, 1)


keep = SlowToGo()
assert not ebbtide.job().should_suspend()
