"""Parse a user's numbers of GPUs and arrays, and format durations and sizes.

Every ``parse_…`` raises ``ValueError`` with a message that says what to write instead.
"""

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbtide_protos.quantities import COUNT, DURATION_UNITS, SIZE_UNITS, abbreviated, bounded

if TYPE_CHECKING:
    from fractions import Fraction

MAX_SHARE_DENOMINATOR: Final = 16
MAX_TASKS: Final = 10_000
MAX_ARRAY_TEXT: Final = 4096
MAX_NODES: Final = 4096
MAX_GPUS: Final = 4096
"""The limits up to here repeat those of `ebbtide_core.model.limits`, which most verbs do not load."""

# Compiled when they are first used, because most verbs use none of them.
_PIECE: Final = r"(?P<low>\d{1,6})(-(?P<high>\d{1,6})(:(?P<step>[1-9]\d{0,5}))?)?"
_AFTER: Final = r"\d{1,9}(\.\d{1,9})?|@(~\d{1,4})?"
_GPUS: Final = r"(?P<low>[0-9]+(?:/[0-9]+)?)(?:-(?P<high>[0-9]+(?:/[0-9]+)?))?"


class GpuRange(NamedTuple):
    """The least and the most GPUs that a job takes; equal for a rigid job."""

    low: "Fraction | int"
    high: "Fraction | int"

    @classmethod
    def exactly(cls, count: int) -> "GpuRange":
        """Return the range of exactly ``count`` whole GPUs."""
        return cls(count, count)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def format_duration(seconds: float) -> str:
    """Write a duration in the form that `parse_duration` reads, to the second (to 0.1 s below ten seconds)."""
    if 0 < seconds < 9.95 and not float(seconds).is_integer():
        return f"{seconds:.1f}s"
    rest, written = round(max(seconds, 0)), ""
    for unit, length in DURATION_UNITS.items():
        count, rest = divmod(rest, length)
        written += f"{count}{unit}" if count else ""
    return written or "0s"


def format_size(count: int) -> str:
    """Write a number of bytes with a binary unit, to three digits or so."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count >= SIZE_UNITS[unit.lower()]:
            value = count / SIZE_UNITS[unit.lower()]
            return f"{value:.0f}{unit}" if value.is_integer() or value >= 100 else f"{value:.1f}{unit}"
    return f"{count}B"


def parse_gpus(text: str) -> GpuRange:
    """Read ``N``, ``N-M``, ``1/n`` or ``1/n-M``."""
    match = re.fullmatch(_GPUS, bounded(text))
    if match is None:
        raise ValueError(f"{text!r} is not a number of GPUs: write 2, 1-4, 1/4 or 1/4-2")
    low = _gpu_count(match["low"])
    high = _gpu_count(match["high"]) if match["high"] else low
    if low > high:
        raise ValueError(f"{text!r} begins above its end: write {high}-{low}")
    return GpuRange(low, high)


def parse_nodes(text: str) -> tuple[int, int]:
    """Read ``N``, or ``1-M`` for so many or fewer; return the least and the most."""
    match = re.fullmatch(r"(?P<low>\d{1,9})(-(?P<high>\d{1,9}))?", bounded(text))
    low = int(match["low"]) if match else 0
    high = int(match["high"]) if match and match["high"] else low
    if not 1 <= low <= high <= MAX_NODES:
        raise ValueError(f"{text!r} is not a number of nodes up to {MAX_NODES}: write 2 or 1-3")
    if 1 < low < high:
        raise ValueError(f"{text!r}: a range of nodes begins at 1: write 1-{high}")
    return low, high


def _gpu_count(text: str) -> "Fraction | int":
    """Read one count: a positive whole number, or 1/n."""
    numerator, _, denominator = text.partition("/")
    if int(numerator) == 0:
        raise ValueError(f"{text!r} is no GPU at all: a job without GPUs is spelled --cpu-only")
    if int(numerator) > MAX_GPUS:
        raise ValueError(f"{text!r} is more than the limit of {MAX_GPUS}")
    if not denominator:
        return int(numerator)
    if int(numerator) != 1 or not 1 <= int(denominator) <= MAX_SHARE_DENOMINATOR:
        raise ValueError(f"{text!r} is not a share of one GPU: write 1/n with n from 1 to {MAX_SHARE_DENOMINATOR}")
    from fractions import Fraction

    return Fraction(1, int(denominator))


def parse_cpus(text: str) -> float:
    """Read a positive number of CPUs such as ``4`` or ``0.5``."""
    if not re.fullmatch(COUNT, bounded(text)) or float(text) == 0:
        raise ValueError(f"{text!r} is not a positive number of CPUs: write 4 or 0.5")
    return float(text)


def parse_array(text: str) -> tuple[tuple[int, ...], int]:
    """Read ``0-9``, ``0,3,7-9`` or ``0-15:4``, and ``%2`` as the most at a time; return the indices, and that or 0."""
    listed, percent, most = text.partition("%")
    pieces = [re.fullmatch(_PIECE, piece) for piece in listed.split(",")]
    if len(text) > MAX_ARRAY_TEXT or not all(pieces) or not re.fullmatch(r"[1-9]\d{0,8}" if percent else "", most):
        raise ValueError(f"{abbreviated(text)!r} is not a list of indices: write 0-9, 0-9%2 or 0,3,7-9")
    indices = list[int]()
    for piece in pieces:
        assert piece is not None
        low, high, step = int(piece["low"]), int(piece["high"] or piece["low"]), int(piece["step"] or 1)
        if low > high:
            raise ValueError(f"{abbreviated(text)!r}: {low}-{high} begins above its end")
        if (high - low) // step >= MAX_TASKS:
            raise ValueError(f"{abbreviated(text)!r} has more than the limit of {MAX_TASKS} tasks")
        indices.extend(range(low, high + 1, step))
    return tuple(sorted(set(indices))), int(most or 0)


def parse_after(text: str) -> tuple[tuple[str, str], ...]:
    """Read ``12``, ``ok:12``, ``not-ok:12:13``, or Slurm's ``afterok:12,afterany:14``; return ids and their kinds."""
    found = []
    for part in text.split(","):
        kind, _, ids = part.partition(":") if ":" in part else ("", "", part)
        name = {"": "any", "afterany": "any", "afterok": "ok", "afternotok": "not-ok"}.get(kind, kind)
        named = ids.split(":")
        if name not in ("any", "ok", "not-ok") or not all(re.fullmatch(_AFTER, id) for id in named):
            raise ValueError(f"{abbreviated(part)!r} is no job to wait for: write 12, ok:12, not-ok:12, any:12 or ok:@")
        found += [(id, name) for id in named]
    return tuple(found)


def parse_setting(text: str) -> tuple[str, str]:
    """Read ``KEY=VALUE``."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise ValueError(f"{abbreviated(text)!r} is not of the form KEY=VALUE")
    return key, value


def parse_param(text: str) -> tuple[str, tuple[str, ...]]:
    """Read ``lr=.1,.01``; return the name and its values."""
    name, separator, values = text.partition("=")
    if not separator or not re.fullmatch(r"[A-Za-z_]\w{0,63}", name, re.ASCII):
        raise ValueError(f"{abbreviated(text)!r} is not of the form NAME=VALUE,VALUE")
    if not values:
        raise ValueError(f"{name} has no value: write {name}=VALUE,VALUE")
    return name, tuple(values.split(","))
