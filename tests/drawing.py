"""How many examples a property is tried on: `make test-all` draws as many as it names, `make test` a part of them."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

Example = TypeVar("Example")

_ALL = 100  # of the thorough profile


def share_of(count: int) -> int:
    """So many, or the part of them that there is time for."""
    return max(1, count * settings().max_examples // _ALL)


def some_of(examples: Sequence[Example]) -> Sequence[Example]:
    """All of them, or as many of them, at equal distances, as there is time for."""
    return examples[:: len(examples) // share_of(len(examples))]
