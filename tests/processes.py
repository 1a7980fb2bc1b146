"""Every process of this machine."""

from collections.abc import Iterator

import psutil


def every_process() -> Iterator[psutil.Process]:
    """Yield every process.

    `psutil.process_iter` alone remembers the processes that it has seen, and takes a later one with the same pid for
    them.
    """
    psutil.process_iter.cache_clear()
    yield from psutil.process_iter()
