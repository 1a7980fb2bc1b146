"""Garbage collection that does not slow down what makes millions of objects."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

RARELY: Final = (200_000, 50, 1000)
"""Objects made and not freed before the youngest generation is looked at; how often the older ones are."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Look for garbage in cycles rarely: simulations and readers make none, and reference counting frees the rest."""
    before = gc.get_threshold()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)
