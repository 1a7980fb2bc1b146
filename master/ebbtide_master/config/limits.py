"""Reads ``[limits]``, for each user and for each job's log. Without the section, the defaults apply."""

from dataclasses import dataclass, field
from typing import Final

from ebbtide_core.model import limits

from ebbtide_master.config.table import Table
from ebbtide_master.throttle.rates import RateLimit, UserLimits

BURST_S: Final = 5.0
"""Seconds of a configured rate that may be used at once."""
FASTEST: Final = 1e6
_SHARES: Final = {
    "uploads": limits.MAX_UPLOADS,
    "priority": limits.MAX_PRIORITY,
}
"""Limits that are whole numbers from 1 to these values."""


@dataclass(frozen=True, slots=True)
class UserBounds:
    """Limits per user, except ``log_bytes``, which is per attempt and node.

    The last four apply to the role ``user`` only: the most ``reserved_gpu_hours``, in reservations that end at most
    ``reserve_ahead_s`` from now, the most urgent ``priority``, and the greatest ``weight``.
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


def read_limits(file: Table) -> UserBounds:
    """Return the limits of the file, with defaults for those that it does not name."""
    table, defaults = file.table("limits"), UserBounds()
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
    return UserBounds(
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
    """Return a rate per second, with a burst of `BURST_S`, but of at least ``least_burst``."""
    per_s = table.take(key, float, default.per_s)
    if not 0.1 <= per_s <= FASTEST:
        raise table.error(key, f"{per_s:g} is not between 0.1 and {FASTEST:g}")
    return default if per_s == default.per_s else RateLimit(per_s, max(BURST_S * per_s, least_burst))
