"""Reads addresses: a job's id, and filters, page and order, of which those that make no sense are ignored."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from ebbtide_web.answers import BadInputError

LONGEST_TEXT: Final = 128
"""Characters of a filter in the address of a page."""
LONGEST_WORDS: Final = 64
_MOST_DIGITS: Final = 5
_LATEST: Final = 253402300800.0
"""The end of the year 9999."""
_ID: Final = re.compile(r"[0-9A-Za-z_.,-]{1,64}")


def check_id(id: str) -> str:
    """Return ``id`` if it can be a job's. Raises `BadInputError`."""
    if not _ID.fullmatch(id):
        raise BadInputError("id: is not a job's id")
    return id


def page_number(query: Mapping[str, str]) -> int:
    """Return the number of the page, the first one being 0."""
    text = query.get("page", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0


def order(query: Mapping[str, str], columns: Sequence[str]) -> tuple[str, bool]:
    """Return the one of ``columns`` to sort by, else the first of them, and whether the greatest comes first."""
    text = query.get("sort", "")
    column = text.removeprefix("-")
    return column if column in columns else columns[0], text.startswith("-")


def words(query: Mapping[str, str], name: str) -> str:
    """Return what a field of text says, shortened; empty if it cannot be shown."""
    found = query.get(name, "").strip()
    return found[:LONGEST_WORDS] if found.isprintable() else ""


def moment(query: Mapping[str, str], name: str) -> float:
    """Return a time in Unix seconds, 0 if there is none."""
    text = query.get(name, "")
    try:
        found = float(text) if len(text) < 20 else math.nan
    except ValueError:
        return 0.0
    return found if 0.0 < found < _LATEST else 0.0
