"""Finds the word that a misspelt one stands for, to say it in an error message."""

from collections.abc import Iterable
from typing import Final

SHOWN: Final = 40
"""Most characters of a misspelt word that are shown and compared; a word of a million would take long to compare."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question about the known word that is most like ``word``, to end a message; empty if none is like it."""
    from difflib import get_close_matches  # most words are right

    close = get_close_matches(word[:SHOWN], list(known), n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def choices(word: str, known: Iterable[str]) -> str:
    """Return the known words, of which ``word`` is none, with a question about the one that is most like it."""
    known = list(known)
    return f"{', '.join(known)}{did_you_mean(word, known)}"


def none_of(word: str, known: Iterable[str]) -> str:
    """Return the message about a word that is none of the known ones."""
    return f"{word[:SHOWN]!r} is none of {choices(word, known)}"
