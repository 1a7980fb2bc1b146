"""Reads ``[quotas]``: how many GPUs and unfinished jobs each user may have at a time."""

from typing import Final

from ebbtide_core.model.quotas import Quota, Quotas
from ebbtide_core.model.types import WHOLE

from ebbtide_master.config.table import Table

UNSAID: Final = -(2**63)


def read_quotas(file: Table) -> Quotas:
    """Return the quotas of the file; without the section, no user has one."""
    section = file.table("quotas")
    default = _read_quota(section.table("default"), Quota())
    users = {name: _read_quota(table, default) for name, table in section.tables("users")}
    section.finish()
    return Quotas(default, users)


def _read_quota(table: Table, default: Quota) -> Quota:
    """Return one quota, with limits of ``default`` for those that it does not name."""
    gpus, queued = _limit(table, "gpus"), _limit(table, "queued")
    table.finish()
    return Quota(default.gpus if gpus is None else gpus * WHOLE, default.queued if queued is None else queued)


def _limit(table: Table, key: str) -> int | None:
    value = table.take(key, int, UNSAID)
    if value == UNSAID:
        return None
    if value < 0:
        raise table.error(key, f"{value} is less than 0")
    return value
