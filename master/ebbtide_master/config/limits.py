"""``[limits]``: what one user, and one job's log, may come to at most. All of them hold without the section, too."""

from dataclasses import dataclass, field
from typing import Final

from ebbtide_core.model import limits

from ebbtide_master.config.table import Table
from ebbtide_master.throttle.rates import RateLimit, UserLimits

BURST_S: Final = 5.0
"""A rate that is set allows for so many seconds of it at once."""
FASTEST: Final = 1e6
_SHARES: Final = {
    "uploads": limits.MAX_UPLOADS,
    "priority": limits.MAX_PRIORITY,
}
"""Whole numbers, from 1 to these."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """``log_bytes`` are of each attempt on each node; all else is of each user.

    What follows is for the role ``user`` only: reservations of
    ``reserved_gpu_hours`` that end no later than ``reserve_ahead_s`` from now; ``priority`` is the most urgent that
    they may ask for, ``weight`` the greatest.
    """

    rates: UserLimits = field(default_factory=UserLimits)
    queued: int = limits.MAX_UNFINISHED_JOBS_PER_USER
    log_bytes: int = limits.LOG_BYTES
    uploads: int = limits.MAX_UPLOADS_PER_USER
    snapshot_bytes: int = limits.SNAPSHOT_BYTES_PER_USER
    reserved_gpu_hours: float = limits.RESERVED_GPU_HOURS
    reserve_ahead_s: float = limits.RESERVED_AHEAD_S
    priority: int = limits.URGENT_PRIORITY
    weight: float = limits.HEAVY_WEIGHT


def read_limits(file: Table) -> Bounds:
    """What the file says of limits."""
    table, defaults = file.table("limits"), Bounds()
    rates = UserLimits(
        calls=_rate(table, "calls_per_s", defaults.rates.calls, 1.0),
        jobs=_rate(table, "jobs_per_s", defaults.rates.jobs, limits.MAX_ARRAY_TASKS),
        reads=_rate(table, "reads_per_s", defaults.rates.reads, 1.0),
    )
    queued = table.take("queued", int, defaults.queued)
    log_bytes = table.take_size("log_bytes", defaults.log_bytes)
    shares = {key: _between(table, key, getattr(defaults, key), most) for key, most in _SHARES.items()}
    snapshot_bytes = table.take_size("snapshot_bytes", defaults.snapshot_bytes)
    reserve_ahead_s = table.take_duration("reserve_ahead", defaults.reserve_ahead_s)
    hours, weight = (table.take(key, float, getattr(defaults, key)) for key in ("reserved_gpu_hours", "weight"))
    table.finish()
    if not 0.0 <= hours <= FASTEST:
        raise table.error("reserved_gpu_hours", f"{hours:g} is not between 0 and {FASTEST:g}")
    if not limits.MIN_WEIGHT <= weight <= limits.MAX_WEIGHT:
        raise table.error("weight", f"{weight:g} is not between {limits.MIN_WEIGHT:g} and {limits.MAX_WEIGHT:g}")
    if not 1 <= queued <= limits.MAX_UNFINISHED_JOBS:
        raise table.error("queued", f"{queued} is not between 1 and {limits.MAX_UNFINISHED_JOBS}")
    if not limits.MIN_LOG_BYTES <= log_bytes <= limits.MAX_LOG_BYTES:
        least, most = limits.MIN_LOG_BYTES // limits.MIB, limits.MAX_LOG_BYTES // 2**40
        raise table.error("log_bytes", f"{log_bytes} bytes are not between {least}MiB and {most}TiB")
    return Bounds(
        rates=rates,
        queued=queued,
        log_bytes=log_bytes,
        snapshot_bytes=snapshot_bytes,
        reserved_gpu_hours=hours,
        reserve_ahead_s=reserve_ahead_s,
        weight=weight,
        **shares,
    )


def _between(table: Table, key: str, default: int, most: int) -> int:
    value = table.take(key, int, default)
    if not 1 <= value <= most:
        raise table.error(key, f"{value} is not between 1 and {most}")
    return value


def _rate(table: Table, key: str, default: RateLimit, least_burst: float) -> RateLimit:
    """So many a second; after a pause enough at once for the largest array."""
    per_s = table.take(key, float, default.per_s)
    if not 0.1 <= per_s <= FASTEST:
        raise table.error(key, f"{per_s:g} is not between 0.1 and {FASTEST:g}")
    return default if per_s == default.per_s else RateLimit(per_s, max(BURST_S * per_s, least_burst))
