"""Makes garbage collection rare, so that it does not slow down code that creates millions of objects."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

RARELY: Final = (200_000, 50, 1000)
"""The thresholds of `gc.set_threshold`: new objects per collection, and the periods of the older generations."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Collect cycles rarely in the block; simulations and readers make none, and reference counts free the rest."""
    before = gc.get_threshold()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)
