"""The journal: every durable event, in SQLite.

One writer thread commits whole batches; readers use connections of their own. Any error of the store is fatal: SQLite
may commit again after a failed fsync, so the caller has to stop (`StoreError`). A disk that fills up is noticed before.
"""

import fcntl
import json
import os
import secrets
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_core.codec import UnknownEventError, decode_event, encode
from ebbtide_core.events import Event
from ebbtide_core.limits import MIB

SCHEMA_VERSION: Final = 1
RESERVED_BYTES: Final = 64 * MIB
"""Of the disk: with less than this left no job is accepted, so that those that were can still be told, and ended."""
MAX_SEQUENCE: Final = 2**63 - 1
_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    job TEXT NOT NULL,
    node TEXT NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_job ON events (job, sequence) WHERE job <> '';
"""


class StoreError(RuntimeError):
    """The journal cannot be trusted any more: the master has to stop."""


class StoreInUseError(RuntimeError):
    """Another master has the journal open."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One line of the journal; ``sequence`` counts from 1 without gaps."""

    sequence: int
    time: float
    event: Event


class Store:
    """The journal at ``path``; created if there is none. One process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._lock = _lock(path.with_name("master.lock"))
        self._writer = ThreadPoolExecutor(1, "journal")
        try:
            self._db = self._writer.submit(self._open_for_writing).result()
            with _fatal_errors(), closing(self._read()) as db:
                self.cluster_id: str = db.execute("SELECT value FROM meta WHERE key = 'cluster_id'").fetchone()[0]
                self.last_sequence: int = db.execute("SELECT coalesce(max(sequence), 0) FROM events").fetchone()[0]
                self.last_time: float = db.execute("SELECT coalesce(max(time), 0.0) FROM events").fetchone()[0]
        except BaseException:
            self._writer.shutdown()
            os.close(self._lock)
            raise

    @property
    def folder(self) -> Path:
        """Where the journal lies, and whatever else the master keeps."""
        return self._path.parent

    def close(self) -> None:
        """Finish writing and let another master open it."""
        self._writer.submit(self._db.close).result()
        self._writer.shutdown()
        os.close(self._lock)

    # --- writing ---

    def append(self, batch: Iterable[tuple[float, Event]]) -> Future[None]:
        """Make ``batch`` durable in one transaction; the result is there once it is, or is `StoreError`."""
        return self._writer.submit(self._append, list(batch))

    def has_room(self) -> bool:
        """Whether the disk has more than what is reserved for the jobs that were accepted already."""
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize > RESERVED_BYTES

    def next_epoch(self) -> int:
        """Count this start of a master, durably; the new number."""
        return self._writer.submit(self._next_epoch).result()

    def notified(self) -> dict[str, int]:
        """Up to which line of the journal each target of words about jobs was told; empty if that was never noted."""
        with _fatal_errors(), closing(self._read()) as db:
            row = db.execute("SELECT value FROM meta WHERE key = 'notified'").fetchone()
        return {} if row is None else {str(key): int(value) for key, value in json.loads(row[0]).items()}

    def note_notified(self, told: Mapping[str, int]) -> Future[None]:
        """Note that, durably."""
        return self._writer.submit(self._note_notified, json.dumps(dict(told)))

    def _note_notified(self, told: str) -> None:
        with _fatal_errors():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('notified', ?)", (told,))

    def _append(self, batch: list[tuple[float, Event]]) -> None:
        rows = []
        for offset, (time, event) in enumerate(batch, start=1):
            body = json.dumps(encode(event), separators=(",", ":"), allow_nan=False)
            subject = (str(getattr(event, "job", "")), str(getattr(event, "node", "")))
            rows.append((self.last_sequence + offset, time, type(event).__name__, *subject, body))
        with _fatal_errors():
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")
        self.last_sequence += len(rows)

    def _next_epoch(self) -> int:
        with _fatal_errors():
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'epoch'")
            epoch = int(self._db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()[0])
            self._db.execute("COMMIT")
        return epoch

    def _open_for_writing(self) -> sqlite3.Connection:
        with _fatal_errors():
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            db = sqlite3.connect(self._path, isolation_level=None)
            mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise StoreError(f"{self._path}: SQLite uses journal mode {mode} instead of wal")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA busy_timeout=5000")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise StoreError(f"{self._path} was written by a newer version of Ebbtide (schema {version})")
            if version == 0:
                identity = f"INSERT INTO meta VALUES ('cluster_id', '{secrets.token_hex(8)}'), ('epoch', '0');"
                script = f"BEGIN IMMEDIATE; {_SCHEMA} {identity} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT"
                db.executescript(script)
            return db

    # --- reading ---

    def events(
        self, after: int = 0, job: str | None = None, limit: int = -1, kinds: Collection[str] = ()
    ) -> Iterator[StoredEvent]:
        """The journal in order, from the line behind ``after``; of one job if named, of those ``kinds`` if any are.

        A negative limit is none.
        """
        query = "SELECT sequence, time, kind, body FROM events WHERE sequence > ?"
        arguments: list[object] = [min(after, MAX_SEQUENCE)]
        if kinds:
            query += f" AND kind IN ({','.join('?' * len(kinds))})"
            arguments += kinds
        if job is not None:
            query += " AND job = ? AND job <> ''"
            arguments.append(job)
        with _fatal_errors(), closing(self._read()) as db:
            for sequence, time, kind, body in db.execute(f"{query} ORDER BY sequence LIMIT ?", [*arguments, limit]):
                yield StoredEvent(sequence, time, _decoded(sequence, kind, body))

    def _read(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True, check_same_thread=False)


def _decoded(sequence: int, kind: str, body: str) -> Event:
    try:
        return decode_event(kind, json.loads(body))
    except UnknownEventError:
        raise StoreError(f"line {sequence} of the journal, {kind}, was written by a newer version of Ebbtide") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(f"line {sequence} of the journal, {kind}, is damaged: {error}") from error


class _fatal_errors:
    """Turns every error of SQLite into `StoreError`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error | OSError):
            raise StoreError(f"the journal failed: {error}") from error


def _lock(path: Path) -> int:
    """Take the exclusive lock that keeps a second master out; the kernel drops it when this process ends."""
    with _fatal_errors():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StoreInUseError(f"another master uses {path.parent}") from None
    return descriptor
