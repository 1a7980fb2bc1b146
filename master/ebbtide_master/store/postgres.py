"""Keeps journal and vault in a PostgreSQL database, which several masters share and one leads (`leadership`).

As with SQLite, one thread commits whole batches, readers use sessions of their own, and any error is fatal: a master
that cannot know whether a commit succeeded ends, and the next one reads what was committed.
"""

import json
import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from ebbtide_core.events import Event

from ebbtide_master.store import leadership
from ebbtide_master.store.journal import (
    ANYTHING,
    About,
    DamagedLine,
    DamagedLineError,
    StandbyMaster,
    StoredEvent,
    StoreError,
    columns,
    decoded,
)
from ebbtide_master.store.leadership import Connection, Leadership, connect, postgres_errors
from ebbtide_master.store.sqlite import LOCK_NAME, MOST_DAMAGED, lock
from ebbtide_master.store.sqlite_journal import MAX_SEQUENCE
from ebbtide_master.store.vault import EntryKind

READ_AT_ONCE: Final = 2_000
MOST_STANDBYS: Final = 20
_APPEND: Final = "INSERT INTO ebbtide.events VALUES (%s, %s, %s, %s, %s, %s)"
_PUT: Final = (
    "INSERT INTO ebbtide.vault VALUES (%s, %s, %s) ON CONFLICT (kind, key) DO UPDATE SET value = EXCLUDED.value"
)
_NOTE: Final = "INSERT INTO ebbtide.meta VALUES ('notified', %s) ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value"

_SET_ASIDE: Final = "INSERT INTO ebbtide.damage VALUES (%s, %s, %s, %s) ON CONFLICT (sequence) DO NOTHING"
_REMOVE: Final = "DELETE FROM ebbtide.vault WHERE kind = %s AND key = %s"

_STANDBYS: Final = """
SELECT application_name, greatest(0.0, extract(epoch FROM clock_timestamp() - query_start))::double precision
FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s ORDER BY 1 LIMIT %s
"""

Work = Callable[[Connection], object]


class PostgresStore:
    """The journal in the database at ``url``, which is made if there is none; files lie in ``home``.

    Waits until this master leads, or raises `StoreInUseError` if another one leads and ``wait`` is false. ``lost``
    fails once this master does not lead any more.
    """

    def __init__(self, url: str, home: Path, *, wait: bool = True) -> None:
        self._url = url
        self.folder = home.absolute()
        self.lost: Future[None] = Future()
        self._closing = threading.Event()
        self._lock = lock(self.folder / LOCK_NAME)
        try:
            self._leadership = Leadership(url, secrets.token_hex(8), wait=wait)
            self._counted = False
            self._look()
        except BaseException:
            os.close(self._lock)
            raise
        self._writer = ThreadPoolExecutor(1, "journal")
        self.vault = PostgresVault(self._read, lambda work: self._writer.submit(self._write, work))
        self._speaker = threading.Thread(target=self._speak, name="leader", daemon=True)
        self._speaker.start()

    def _look(self) -> None:
        """Read the journal's metadata, once no other master writes."""
        with postgres_errors(), closing(self._read()) as db:
            meta: dict[str, str] = dict(db.execute("SELECT key, value FROM ebbtide.meta").fetchall())
            last = "SELECT sequence, time FROM ebbtide.events ORDER BY sequence DESC LIMIT 1"
            self.last_sequence: int
            self.last_time: float
            self.last_sequence, self.last_time = db.execute(last).fetchone() or (0, 0.0)
            aside = db.execute("SELECT sequence, kind, job, reason FROM ebbtide.damage ORDER BY sequence").fetchall()
        self.cluster_id = meta["cluster_id"]
        self.restored = float(meta["restored"]) if "restored" in meta else None
        self.damage = {line[0]: DamagedLine(*line) for line in aside}

    def close(self) -> None:
        """Finish writing and let another master lead; a second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._speaker.join()
        self._writer.submit(self._leadership.db.close).result()
        self._writer.shutdown()
        os.close(self._lock)

    # --- writing ---

    def append(self, batch: Iterable[tuple[float, Event]]) -> Future[None]:
        """Make ``batch`` durable in one transaction; the future ends once it is, or fails with `StoreError`."""
        return self._writer.submit(self._append, list(batch))

    def has_room(self) -> bool:
        """Return True: the disk is the server's, and a full one fails a commit, which ends the master."""
        return True

    def standbys(self) -> list[StandbyMaster]:
        """Return the masters that wait to lead, as the server knows their sessions. Blocks."""
        with postgres_errors(), closing(self._read()) as db:
            rows = db.execute(_STANDBYS, (f"{leadership.STANDBY}%", MOST_STANDBYS)).fetchall()
        return [StandbyMaster(name.removeprefix(leadership.STANDBY), heard_s) for name, heard_s in rows]

    def next_epoch(self) -> int:
        """Return the epoch with which this master came to lead; a second call counts it up."""
        first, self._counted = not self._counted, True
        return self._leadership.epoch if first else self._writer.submit(self._leadership.count).result()

    def notified(self) -> dict[str, int]:
        """Return the last line of the journal up to which each target was notified; empty if none was noted."""
        with postgres_errors(), closing(self._read()) as db:
            row = db.execute("SELECT value FROM ebbtide.meta WHERE key = 'notified'").fetchone()
        return {} if row is None else {str(key): int(line) for key, line in json.loads(row[0]).items()}

    def note_notified(self, cursors: Mapping[str, int]) -> Future[None]:
        """Make durable up to which line of the journal each target was notified."""
        value = json.dumps(dict(cursors))
        return self._writer.submit(self._write, lambda db: db.execute(_NOTE, (value,)))

    def set_damage_aside(self) -> None:
        """Find all lines that cannot be read, and note them durably in ``damage``. Raises `StoreError` at too many."""
        found = list(self._damaged())
        if len(found) > MOST_DAMAGED:
            raise StoreError(f"{len(found)} lines of the journal are damaged, {found[0]}")
        rows = [(line.sequence, line.kind, line.job, line.reason) for line in found]
        self._writer.submit(self._write, lambda db: db.cursor().executemany(_SET_ASIDE, rows)).result()
        self.damage.update((line.sequence, line) for line in found)

    def _append(self, batch: list[tuple[float, Event]]) -> None:
        first = self.last_sequence + 1
        rows = [(sequence, time, *columns(event)) for sequence, (time, event) in enumerate(batch, start=first)]
        self._write(lambda db: db.cursor().executemany(_APPEND, rows))
        self.last_sequence += len(rows)

    def _write(self, work: Work) -> None:
        """Do ``work`` in a transaction, in the writer's thread."""
        try:
            with self._leadership.writing() as db:
                work(db)
        except StoreError as error:
            self._lose(error)
            raise

    def _speak(self) -> None:
        """Show the server regularly that this leader is alive, and notice if another one leads."""
        while not self._closing.wait(leadership.LEASE_S / 5):
            try:
                self._writer.submit(self._leadership.speak).result()
            except StoreError as error:
                self._lose(error)

    def _lose(self, error: StoreError) -> None:
        with suppress(InvalidStateError):  # once is enough
            self.lost.set_exception(error)

    # --- reading ---

    def events(
        self, after: int = 0, job: str | None = None, limit: int = -1, kinds: Collection[str] = ()
    ) -> Iterator[StoredEvent]:
        """Yield the events behind line ``after`` in order; only those of ``job`` and of ``kinds``, if given.

        A negative limit means none. Lines that were set aside are left out; another damaged one raises
        `DamagedLineError`.
        """
        query = "SELECT sequence, time, kind, job, body FROM ebbtide.events WHERE sequence > %s"
        arguments: list[object] = [min(after, MAX_SEQUENCE)]
        if kinds:
            query += " AND kind = ANY(%s)"
            arguments.append(list(kinds))
        if job is not None:
            query += " AND job = %s AND job <> ''"
            arguments.append(job)
        return self._lines(f"{query} ORDER BY sequence LIMIT %s", [*arguments, None if limit < 0 else limit])

    def newest(self, before: int, after: int = 0, limit: int = -1, about: About = ANYTHING) -> Iterator[StoredEvent]:
        """Yield the events before line ``before`` and behind ``after``, the newest first, as `events` does."""
        query = "SELECT sequence, time, kind, job, body FROM ebbtide.events WHERE sequence < %s AND sequence > %s"
        arguments: list[object] = [min(before, MAX_SEQUENCE), min(after, MAX_SEQUENCE)]
        if about.kinds:
            query += " AND kind = ANY(%s)"
            arguments.append(list(about.kinds))
        if about.job:
            query += " AND job = %s AND job <> ''"
            arguments.append(about.job)
        if about.node:
            query += " AND node = %s"
            arguments.append(about.node)
        if about.since:
            query += " AND time >= %s"
            arguments.append(about.since)
        if about.until:
            query += " AND time <= %s"
            arguments.append(about.until)
        return self._lines(f"{query} ORDER BY sequence DESC LIMIT %s", [*arguments, None if limit < 0 else limit])

    def recorded(self, since: float, until: float, before: int, after: int = 0) -> range:
        """Return the lines from the first to the last one of those recorded from ``since`` to ``until``."""
        query = (
            "SELECT min(sequence), max(sequence) FROM ebbtide.events"
            " WHERE time >= %s AND time <= %s AND sequence < %s AND sequence > %s"
        )
        with postgres_errors(), closing(self._read()) as db:
            bounds = since, until, min(before, MAX_SEQUENCE), min(after, MAX_SEQUENCE)
            first, last = db.execute(query, bounds).fetchone() or (None, None)
        return range(first or 1, (last or 0) + 1)

    def _lines(self, query: str, arguments: list[object]) -> Iterator[StoredEvent]:
        with postgres_errors(), closing(self._read()) as db, db.transaction(), db.cursor("journal") as cursor:
            cursor.itersize = READ_AT_ONCE
            cursor.execute(query, arguments)
            for sequence, time, *line in cursor:
                if sequence not in self.damage:
                    yield StoredEvent(sequence, time, decoded(sequence, *line))

    def _damaged(self) -> Iterator[DamagedLine]:
        with postgres_errors(), closing(self._read()) as db, db.transaction(), db.cursor("damaged") as cursor:
            cursor.itersize = READ_AT_ONCE
            for line in cursor.execute("SELECT sequence, kind, job, body FROM ebbtide.events ORDER BY sequence"):
                try:
                    decoded(*line)
                except DamagedLineError as error:
                    yield error.line

    def _read(self) -> Connection:
        db = connect(self._url)
        db.read_only = True
        return db


class PostgresVault:
    """The vault in the same database, in a table that no other database user may read."""

    def __init__(self, read: Callable[[], Connection], write: Callable[[Work], Future[None]]) -> None:
        self._read = read
        self._write = write

    def put(self, kind: EntryKind, entries: Mapping[str, str | None]) -> Future[None]:
        """Make ``entries`` durable in one transaction; the value None removes an entry."""
        kept = [(kind.value, key, value) for key, value in entries.items() if value is not None]
        gone = [(kind.value, key) for key, value in entries.items() if value is None]

        def put(db: Connection) -> None:
            db.cursor().executemany(_PUT, kept)
            db.cursor().executemany(_REMOVE, gone)

        return self._write(put)

    def read(self, kind: EntryKind) -> dict[str, str]:
        """Return all entries of ``kind``, by key."""
        with postgres_errors(), closing(self._read()) as db:
            return dict(db.execute("SELECT key, value FROM ebbtide.vault WHERE kind = %s", (kind.value,)).fetchall())
