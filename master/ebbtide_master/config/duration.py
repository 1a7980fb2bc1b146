"""Durations, as users write them on the command line: ``90s``, ``3m``, ``2h``, ``1d``, ``1h30m``."""

import re
from typing import Final

from ebbtide_master.config.table import Table

_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
_UNITS: Final = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION: Final = re.compile("".join(f"(?:({_NUMBER}){unit})?" for unit in _UNITS))


def take_duration(table: Table, key: str, default_s: float) -> float:
    """The seconds that ``key`` amounts to; ``default_s`` if it is not there."""
    text = table.take(key, str, "")
    if not text:
        return default_s
    match = _DURATION.fullmatch(text)
    if match is None:
        raise table.error(key, f"{text!r} is not a duration with units: write 90s, 3m, 2h, 1d or 1h30m")
    return sum(float(count) * unit for count, unit in zip(match.groups(), _UNITS.values(), strict=True) if count)
