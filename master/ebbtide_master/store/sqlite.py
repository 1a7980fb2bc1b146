"""Keeps the journal in an SQLite file, with every durable event, and the vault in a file beside it.

One writer thread commits whole batches; readers use connections of their own. Any error of the store is fatal: SQLite
may commit again after a failed fsync, so the caller has to stop (`StoreError`). A disk that fills up is noticed before.
"""

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Final

from ebbtide_core.events import Event
from ebbtide_core.model.limits import MIB

from ebbtide_master.store.fatal import sqlite_errors
from ebbtide_master.store.journal import DamagedLine, StandbyMaster, StoreError, StoreInUseError, columns
from ebbtide_master.store.place import check_place
from ebbtide_master.store.reserve import DiskReserve, free_bytes
from ebbtide_master.store.sqlite_file import DAMAGE_SCHEMA, open_journal, transaction
from ebbtide_master.store.sqlite_file import SCHEMA_VERSION as SCHEMA_VERSION
from ebbtide_master.store.sqlite_journal import SqliteJournal
from ebbtide_master.store.sqlite_vault import SqliteVault

RESERVED_BYTES: Final = 64 * MIB
"""Bytes of the disk that are kept for accepted jobs, so that they can still be reported and ended: with less free no
job is accepted."""
JOURNAL_NAME: Final = "journal.db"
VAULT_NAME: Final = "vault.db"
LOCK_NAME: Final = "master.lock"
RESERVE_NAME: Final = "reserve"
LINES_AT_ONCE: Final = 128
"""Lines that one statement inserts; each has six parameters, and every SQLite takes 999 of them."""
MOST_DAMAGED: Final = 100
"""Number of damaged lines above which a journal is not trusted at all."""

_Row = tuple[int, float, str, str, str, str]


class SqliteStore(SqliteJournal):
    """The journal at ``path``, created if there is none. Only one process at a time may have it open."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self.lost: Future[None] = Future()  # never fails: the kernel holds the lock until the process ends
        self._lock = lock(self._path.with_name(LOCK_NAME))
        self._reserve = DiskReserve(self._path.with_name(RESERVE_NAME))
        self._writer = ThreadPoolExecutor(1, "journal")
        try:
            check_place(self._path.parent)
            self._db = self._writer.submit(open_journal, self._path).result()
            self.vault = SqliteVault(self._path.with_name(VAULT_NAME), self._writer, self._reserve)
            super().__init__(self._path)
        except BaseException:
            self._writer.shutdown()
            os.close(self._lock)
            raise

    @property
    def folder(self) -> Path:
        """The directory of the journal and of the master's other files."""
        return self._path.parent

    def close(self) -> None:
        """Finish writing and let another master open it."""
        self._writer.submit(self._db.close).result()
        self._writer.submit(self.vault.close).result()
        self._writer.shutdown()
        self._reserve.give_up()
        os.close(self._lock)

    # --- writing ---

    def append(self, batch: Iterable[tuple[float, Event]]) -> Future[None]:
        """Make ``batch`` durable in one transaction; the future ends once it is, or fails with `StoreError`."""
        return self._writer.submit(self._append, list(batch))

    def has_room(self) -> bool:
        """Whether the disk has more room than is reserved for the jobs that were already accepted."""
        return free_bytes(self._path.parent) > RESERVED_BYTES

    def standbys(self) -> list[StandbyMaster]:
        """Return nothing: a master that finds the file in use ends at once."""
        return []

    def next_epoch(self) -> int:
        """Count this start of a master durably, and return the new epoch."""
        return self._writer.submit(self._next_epoch).result()

    def notified(self) -> dict[str, int]:
        """Return the last line of the journal up to which each target was notified; empty if none was noted."""
        with sqlite_errors(), closing(self._read()) as db:
            row = db.execute("SELECT value FROM meta WHERE key = 'notified'").fetchone()
        return {} if row is None else {str(key): int(value) for key, value in json.loads(row[0]).items()}

    def note_notified(self, cursors: Mapping[str, int]) -> Future[None]:
        """Make durable up to which line of the journal each target was notified."""
        return self._writer.submit(self._note_notified, json.dumps(dict(cursors)))

    def _note_notified(self, cursors: str) -> None:
        with sqlite_errors():
            transaction(
                self._db,
                lambda db: db.execute("INSERT OR REPLACE INTO meta VALUES ('notified', ?)", (cursors,)),
                self._reserve,
            )

    def _append(self, batch: list[tuple[float, Event]]) -> None:
        first = self.last_sequence + 1
        rows = [(sequence, time, *columns(event)) for sequence, (time, event) in enumerate(batch, start=first)]
        with sqlite_errors():
            self._reserve.take(RESERVED_BYTES)
            transaction(self._db, lambda db: _insert(db, rows), self._reserve)
        self.last_sequence += len(rows)

    def _next_epoch(self) -> int:
        def counted(db: sqlite3.Connection) -> int:
            db.execute("UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'epoch'")
            return int(db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()[0])

        with sqlite_errors():
            return transaction(self._db, counted, self._reserve)

    def set_damage_aside(self) -> None:
        """Find all lines that cannot be read, and note them durably in ``damage``. Raises `StoreError` at too many."""
        found = list(self.damaged())
        if len(found) > MOST_DAMAGED:
            raise StoreError(f"{len(found)} lines of the journal are damaged, {found[0]}")
        self._writer.submit(self._note_damage, found).result()
        self.damage.update((line.sequence, line) for line in found)

    def _note_damage(self, found: list[DamagedLine]) -> None:
        rows = [(line.sequence, line.kind, line.job, line.reason) for line in found]

        def note(db: sqlite3.Connection) -> None:
            db.execute(DAMAGE_SCHEMA)
            db.executemany("INSERT OR REPLACE INTO damage VALUES (?, ?, ?, ?)", rows)

        with sqlite_errors():
            transaction(self._db, note, self._reserve)


def _insert(db: sqlite3.Connection, rows: list[_Row]) -> None:
    """Insert lines of the journal, many at a time, because after each statement this thread waits for its turn."""
    for first in range(0, len(rows), LINES_AT_ONCE):
        some = rows[first : first + LINES_AT_ONCE]
        values = ", ".join(["(?, ?, ?, ?, ?, ?)"] * len(some))
        db.execute(f"INSERT INTO events VALUES {values}", tuple(chain.from_iterable(some)))


def lock(path: Path) -> int:
    """Take the exclusive lock that keeps a second master out, and return its descriptor. Raises `StoreInUseError`.

    The kernel releases the lock when this process ends.
    """
    with sqlite_errors():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StoreInUseError(f"another master uses {path.parent}") from None
    return descriptor
