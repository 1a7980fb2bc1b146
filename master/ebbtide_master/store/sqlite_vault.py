"""Keeps the vault in an SQLite file of its own, so that a copy of the journal contains no secret."""

import sqlite3
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from contextlib import closing
from pathlib import Path
from typing import Final

from ebbtide_master.store.fatal import sqlite_errors
from ebbtide_master.store.reserve import DiskReserve
from ebbtide_master.store.sqlite_file import connect, reading, transaction
from ebbtide_master.store.vault import EntryKind

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS entries (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID
"""


class SqliteVault:
    """The vault at ``path``, created if there is none; ``writer`` is the journal's only writing thread."""

    def __init__(self, path: Path, writer: Executor, reserve: DiskReserve) -> None:
        self._path = path
        self._reserve = reserve
        self._writer = writer
        self._db = writer.submit(self._open).result()

    def put(self, kind: EntryKind, entries: Mapping[str, str | None]) -> Future[None]:
        """Make ``entries`` durable in one transaction; the value None removes an entry."""
        return self._writer.submit(self._put, kind, dict(entries))

    def read(self, kind: EntryKind) -> dict[str, str]:
        """Return all entries of ``kind``, by key."""
        with sqlite_errors(), closing(reading(self._path)) as db:
            return dict(db.execute("SELECT key, value FROM entries WHERE kind = ?", (kind.value,)).fetchall())

    def close(self) -> None:
        """Close the database; to be called in the writer's thread."""
        self._db.close()

    def _put(self, kind: EntryKind, entries: dict[str, str | None]) -> None:
        kept = [(kind.value, key, value) for key, value in entries.items() if value is not None]
        gone = [(kind.value, key) for key, value in entries.items() if value is None]

        def change(db: sqlite3.Connection) -> None:
            db.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", kept)
            db.executemany("DELETE FROM entries WHERE kind = ? AND key = ?", gone)

        with sqlite_errors():
            transaction(self._db, change, self._reserve)

    def _open(self) -> sqlite3.Connection:
        with sqlite_errors():
            db = connect(self._path)
            db.execute("PRAGMA secure_delete=ON")
            db.execute(_SCHEMA)
            return db
