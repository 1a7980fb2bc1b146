"""``[limits]``: what one user, and one job's log, may come to at most. All of them hold without the section, too."""

from dataclasses import dataclass, field
from typing import Final

from ebbtide_core import limits

from ebbtide_master.config.size import take_size
from ebbtide_master.config.table import Table
from ebbtide_master.rates import Rate, Rates

BURST_S: Final = 5.0
"""A rate that is set allows for so many seconds of it at once."""
FASTEST: Final = 1e6


@dataclass(frozen=True, slots=True)
class Bounds:
    """``rates`` and ``queued`` unfinished jobs are of each user; ``log_bytes`` are of each attempt on each node."""

    rates: Rates = field(default_factory=Rates)
    queued: int = limits.MAX_UNFINISHED_JOBS_PER_USER
    log_bytes: int = limits.LOG_BYTES


def read_limits(file: Table) -> Bounds:
    """What the file says of limits."""
    table, defaults = file.table("limits"), Bounds()
    rates = Rates(
        calls=_rate(table, "calls_per_s", defaults.rates.calls, 1.0),
        jobs=_rate(table, "jobs_per_s", defaults.rates.jobs, limits.MAX_ARRAY_TASKS),
        reads=_rate(table, "reads_per_s", defaults.rates.reads, 1.0),
    )
    queued = table.take("queued", int, defaults.queued)
    log_bytes = take_size(table, "log_bytes", defaults.log_bytes)
    table.finish()
    if not 1 <= queued <= limits.MAX_UNFINISHED_JOBS:
        raise table.error("queued", f"{queued} is not between 1 and {limits.MAX_UNFINISHED_JOBS}")
    if not limits.MIN_LOG_BYTES <= log_bytes <= limits.MAX_LOG_BYTES:
        least, most = limits.MIN_LOG_BYTES // limits.MIB, limits.MAX_LOG_BYTES // 2**40
        raise table.error("log_bytes", f"{log_bytes} bytes are not between {least}MiB and {most}TiB")
    return Bounds(rates, queued, log_bytes)


def _rate(table: Table, key: str, default: Rate, least_burst: float) -> Rate:
    """So many a second; after a pause enough at once for the largest array."""
    per_s = table.take(key, float, default.per_s)
    if not 0.1 <= per_s <= FASTEST:
        raise table.error(key, f"{per_s:g} is not between 0.1 and {FASTEST:g}")
    return default if per_s == default.per_s else Rate(per_s, max(BURST_S * per_s, least_burst))
