"""Make text safe and readable on a terminal."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ebbtide_protos.quantities import abbreviated
from ebbtide_protos.quantities import printable as printable  # the client's modules take it from here

if TYPE_CHECKING:
    from fractions import Fraction

LONGEST_LINE = 600
GAP = "  "
"""What stands between two columns."""
Cell = str | tuple[str, float | None]
"""Words, or words with the share that is done (0 to 1, None if unknown), drawn as a bar where the screen has room."""


def one_line(text: str) -> str:
    """Make any message fit for one line of stderr."""
    return abbreviated(" ".join(printable(text).split()), LONGEST_LINE)


def format_time(seconds: float | None) -> str:
    """Write Unix seconds as local date and time; a dash for None."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def format_count(count: "float | Fraction") -> str:
    """Write a number of GPUs or CPUs: ``4``, ``1/4``, ``2.5``."""
    if count == int(count):
        return str(int(count))
    from fractions import Fraction  # most numbers are whole

    value = Fraction(count).limit_denominator(720_720)
    if value.denominator == 1 or (value.numerator == 1 and value.denominator <= 16):
        return str(value)
    return f"{float(value):.2f}".rstrip("0")


def format_command(command: Sequence[str]) -> str:
    """Write a command as a shell would take it, made safe for a terminal."""
    import shlex

    return printable(shlex.join(command))


def plural(count: int, noun: str) -> str:
    """Write ``1 job``, ``2 jobs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
