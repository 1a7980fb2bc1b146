"""Production jobs and the nodes that they prefer: the most powerful ones (seed 004 §3.2)."""

from typing import Final

from ebbtide_core.resources.books import Books, Node

PRODUCTION: Final = 3
"""Jobs of at most this priority number are production: HYBRID's classes 9 to 11, read as priority 12 - class."""


def power(node: Node) -> float:
    """Return how powerful the slots of ``node`` are: CPUs per GPU, the paper's average CPU per slot."""
    return node.facts.cpus / max(1, len(node.gpus))


def weakness(node: Node) -> float:
    """Return a number that is the lower, the more powerful ``node`` is: the rank by which production jobs go."""
    return -power(node)


def weakest(books: Books) -> float | None:
    """Return the `weakness` of the weakest nodes that can be used; None if all of these are alike."""
    ranks = books.cache.get("weakness", lambda: {weakness(node) for node in books.usable.values()})
    return max(ranks) if len(ranks) > 1 else None
