"""Sizes, as users write them on the command line: ``64MiB``, ``1GiB``, ``1.5TiB``."""

import re
from typing import Final

from ebbtide_master.config.table import Table

_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(KiB|MiB|GiB|TiB)")
_UNITS: Final = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def take_size(table: Table, key: str, default_bytes: int) -> int:
    """The bytes that ``key`` amounts to; ``default_bytes`` if it is not there."""
    text = table.take(key, str, "")
    if not text:
        return default_bytes
    match = _SIZE.fullmatch(text)
    if match is None:
        raise table.error(key, f"{text!r} is not a size with a unit: write 512KiB, 64MiB, 1GiB or 1.5TiB")
    return int(float(match[1]) * _UNITS[match[2]])
