"""Reads ``[journal]``: where the journal is kept, and how it is backed up."""

from dataclasses import dataclass, field
from typing import Final

from ebbtide_master.config.database import take_store
from ebbtide_master.config.table import Table

DAY_S: Final = 86_400.0
SHORTEST_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """A backup is taken every ``backup_every_s`` seconds, 0 for never; the newest ``backup_keep`` of them are kept.

    ``store`` is the URL of a database that keeps the journal, which is not backed up then; empty means a file.
    """

    backup_every_s: float = DAY_S
    backup_keep: int = 7
    store: str = field(default="", repr=False)


def read_journal(file: Table) -> JournalSettings:
    """Return the settings of the journal."""
    table, defaults = file.table("journal"), JournalSettings()
    every_s = table.take_duration("backup_every", defaults.backup_every_s)
    keep = table.take("backup_keep", int, defaults.backup_keep)
    store = take_store(table)
    table.finish()
    if 0 < every_s < SHORTEST_S:
        raise table.error("backup_every", f"is shorter than {SHORTEST_S:g} s (0s: never)")
    if keep < 1:
        raise table.error("backup_keep", f"{keep} is not at least 1")
    return JournalSettings(every_s, keep, store)
