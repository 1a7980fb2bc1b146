"""How many examples a property is tried on: `make test-all` draws as many as it names, `make test` a part of them."""

from hypothesis import settings

_ALL = 100  # of the thorough profile


def share_of(count: int) -> int:
    """So many, or the part of them that there is time for."""
    return max(1, count * settings().max_examples // _ALL)
