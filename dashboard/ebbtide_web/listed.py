"""Reads what the addresses of lists say: which page, and in which order; what makes no sense is passed over. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

_MOST_DIGITS: Final = 5


def page_number(query: Mapping[str, str]) -> int:
    """Return the number of the page, the first one being 0."""
    text = query.get("page", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0


def order(query: Mapping[str, str], columns: Sequence[str]) -> tuple[str, bool]:
    """Return the one of ``columns`` to sort by, else the first of them, and whether the greatest comes first."""
    text = query.get("sort", "")
    column = text.removeprefix("-")
    return column if column in columns else columns[0], text.startswith("-")
