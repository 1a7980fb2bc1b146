"""Reads ``[sessions]``, for shells, notebooks and TensorBoards."""

from ebbtide_core.model import limits
from ebbtide_core.model.settings import DEFAULT_IDLE_S

from ebbtide_master.config.table import Table


def read_idle_limit(file: Table) -> float | None:
    """Return for how many seconds a session without a limit of its own may be unused; None means no limit."""
    table = file.table("sessions")
    idle_s = table.take_duration("idle", DEFAULT_IDLE_S)
    table.finish()
    if idle_s and not limits.MIN_IDLE_S <= idle_s <= limits.MAX_TIME_LIMIT_S:
        bounds = f"0s (for ever) nor between {limits.MIN_IDLE_S:g} and {limits.MAX_TIME_LIMIT_S:g}"
        raise table.error("idle", f"{idle_s:g} s is neither {bounds} s")
    return idle_s or None
