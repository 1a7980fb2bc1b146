"""Reads durations and sizes as people write them, in commands and a master's configuration; makes text safe to show.

duration = one or more counts with units, each unit once and the longest first: d, h, m, s
           (``90s``, ``3m``, ``2h``, ``1d``, ``1h30m``, ``1.5h``)
size     = a count and a unit, with at most one blank between them; letters of any case: B, KB, MB, GB, TB of powers
           of 1000, KiB, MiB, GiB, TiB of powers of 1024 (``64MiB``, ``10GiB``, ``80GB``, ``1.5 TiB``)
count    = digits, with a fraction behind a point if need be; no sign, no exponent

No text is longer than `LONGEST`. Every ``parse_…`` raises ``ValueError`` with a message that says what to write
instead; the caller puts the name of the option or field before it.
"""

import re
from typing import Final

LONGEST: Final = 32
"""Most characters of a value: no sensible value is longer, and a number of a million digits would take long to read."""
DURATION_UNITS: Final = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
SIZE_UNITS: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
COUNT: Final = r"[0-9]+(?:\.[0-9]+)?"

# Compiled when they are first used, because most commands use none of them.
_DURATION: Final = "".join(f"(?:({COUNT}){unit})?" for unit in DURATION_UNITS)
_SIZE: Final = rf"({COUNT}) ?([A-Za-z]+)"


def parse_duration(text: str) -> float:
    """Read a duration; return seconds."""
    from fractions import Fraction

    match = re.fullmatch(_DURATION, bounded(text))
    if not text or match is None:
        raise ValueError(f"{text!r} is not a duration with units: write 90s, 3m, 2h, 1d or 1h30m")
    counts = zip(match.groups(), DURATION_UNITS.values(), strict=True)
    return float(sum(Fraction(count) * seconds for count, seconds in counts if count))


def parse_size(text: str) -> int:
    """Read a size; return bytes, rounded down."""
    from fractions import Fraction

    match = re.fullmatch(_SIZE, bounded(text))
    if match is None or match[2].lower() not in SIZE_UNITS:
        raise ValueError(f"{text!r} is not a size with a unit: write 10GiB, 512MiB or 80GB")
    return int(Fraction(match[1]) * SIZE_UNITS[match[2].lower()])


def abbreviated(text: str, limit: int = LONGEST) -> str:
    """Cut ``text`` to ``limit`` characters, the last of them an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def bounded(text: str) -> str:
    """Return ``text``; raise ValueError if it is longer than any value."""
    if len(text) > LONGEST:
        raise ValueError(f"{abbreviated(text)!r} is longer than {LONGEST} characters")
    return text


def printable(text: str) -> str:
    """Drop control, bidirectional and other invisible characters; white space of any kind becomes a space.

    Names, reasons and commands come from other users, and a terminal obeys what it is shown.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " * letter.isspace() for letter in text)
