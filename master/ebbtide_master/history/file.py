"""Keeps the spans of the timeline in an SQLite file, with the number of the journal's line up to which it goes.

Nothing but a page for people depends on this file, so its errors are no `StoreError`, which would end the master.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_core.model.types import JobId
from ebbtide_core.views.phases import REST_RULES
from ebbtide_core.views.timeline import Began, BookedSpan, Change, Ended, JobSpan, RestSpan, Unnamed

HISTORY_NAME: Final = "history.db"
SCHEMA_VERSION: Final = 1
_NAMES_FORGOTTEN: Final = "names-forgotten"  # the key in ``meta`` of a file in which removed jobs have no names
_REST_RULES: Final = "rest-rules"  # the key in ``meta`` of the rules by which GPUs rest in the file
DAY_S: Final = 86_400.0
GOES_ON: Final = 1e15
"""The end of a span that goes on, in Unix seconds."""
_TABLES: Final = ("meta", "jobs", "spans", "held", "gpus", "booked")
_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE jobs (job TEXT PRIMARY KEY, user TEXT NOT NULL, name TEXT NOT NULL, born INTEGER NOT NULL) STRICT;
CREATE TABLE spans (
    key INTEGER PRIMARY KEY, job TEXT NOT NULL, pool TEXT NOT NULL, attempt INTEGER NOT NULL, doing TEXT NOT NULL,
    share INTEGER, start REAL NOT NULL, end REAL NOT NULL, long INTEGER NOT NULL, why TEXT NOT NULL
) STRICT;
CREATE INDEX spans_by_time ON spans (long, end);
CREATE INDEX spans_by_job ON spans (job, end);
CREATE TABLE held (
    key INTEGER NOT NULL, node TEXT NOT NULL, gpu TEXT NOT NULL, share INTEGER NOT NULL,
    start REAL NOT NULL, end REAL NOT NULL, long INTEGER NOT NULL, PRIMARY KEY (key, node, gpu)
) STRICT;
CREATE INDEX held_by_gpu ON held (node, gpu, long, end);
CREATE TABLE gpus (
    key INTEGER PRIMARY KEY, node TEXT NOT NULL, gpu TEXT NOT NULL, number INTEGER NOT NULL, pool TEXT NOT NULL,
    rest TEXT NOT NULL, start REAL NOT NULL, end REAL NOT NULL, long INTEGER NOT NULL
) STRICT;
CREATE INDEX gpus_by_time ON gpus (long, end);
CREATE INDEX gpus_by_gpu ON gpus (node, gpu, long, end);
CREATE TABLE booked (
    key INTEGER PRIMARY KEY, booking TEXT NOT NULL, user TEXT NOT NULL, node TEXT NOT NULL, gpu TEXT NOT NULL,
    start REAL NOT NULL, end REAL NOT NULL, long INTEGER NOT NULL, why TEXT NOT NULL
) STRICT;
CREATE INDEX booked_by_gpu ON booked (node, gpu, long, end);
"""
# ``long`` says that a span is longer than a day, or goes on. There are few of these, so that a window is found by the
# ends of the others, which are at most a day behind it, however long the history is.


class HistoryError(Exception):
    """The history cannot be kept; the message says why, and what an administrator can do about it."""


@dataclass(frozen=True, slots=True)
class SourceJournal:
    """The journal that a history was made from: that of one cluster, as it is since it was ``restored``, if it was."""

    cluster_id: str
    restored: float | None

    @property
    def text(self) -> str:
        """The origin as it is written into the file."""
        return f"{self.cluster_id} {self.restored or 0.0!r}"


@dataclass(frozen=True, slots=True)
class Reached:
    """The last ``line`` of the journal that is in the history, and its Unix time; 0 if there is none.

    Jobs that had ended before ``known_since`` may be missing: compaction had removed them before they were read.
    """

    line: int = 0
    time: float = 0.0
    known_since: float = 0.0


def reached_in(db: sqlite3.Connection) -> Reached:
    """Return how far the history goes that ``db`` has; it goes nowhere before its first writer has begun.

    Raises ValueError if what is noted of that makes no sense.
    """
    meta: dict[str, str] = dict(db.execute("SELECT key, value FROM meta"))
    try:
        return Reached(int(meta["line"]), float(meta["time"]), float(meta["known_since"])) if meta else Reached()
    except KeyError as error:
        raise ValueError(f"there is no {error}") from None


class HistoryFile:
    """The file at ``path``, open for writing; it is emptied if it was made from another journal than ``origin``.

    Raises `HistoryError` or `sqlite3.Error` if it cannot be used.
    """

    def __init__(self, path: Path, origin: SourceJournal, last_line: int) -> None:
        self._path = path
        self._db = _opened(path)
        try:
            self._inode = os.stat(path).st_ino
            self.reached = self._begin(origin, last_line)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def is_there(self) -> bool:
        """Whether the file still has its name, so that readers find what is written."""
        try:
            return os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            return False

    @property
    def keeps_removed_names(self) -> bool:
        """Whether an older version wrote the file, which kept the names of jobs that were removed."""
        return self._db.execute("SELECT 1 FROM meta WHERE key = ?", (_NAMES_FORGOTTEN,)).fetchone() is None

    def forget_names(self, jobs: Iterable[JobId]) -> None:
        """Blank the names of ``jobs``, the removed ones, and note that this was done."""
        with self._transaction():
            self._db.executemany("UPDATE jobs SET name = '' WHERE job = ?", ((job,) for job in jobs))
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, '')", (_NAMES_FORGOTTEN,))

    def drop_old_rests(self) -> bool:
        """Remove how GPUs rested unless that is by the present rules; return whether it is to be written again."""
        known = self._db.execute("SELECT value FROM meta WHERE key = ?", (_REST_RULES,)).fetchone()
        if known == (str(REST_RULES),):
            return False
        with self._transaction():
            self._db.execute("DELETE FROM gpus")
        return True

    def note_rests(self) -> None:
        """Note that how GPUs rested has been written by the present rules."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_REST_RULES, str(REST_RULES)))

    def write(self, changes: Iterable[Change], reached: Reached) -> None:
        """Take in ``changes``, and note how far the history goes, in one transaction."""
        with self._transaction():
            for change in changes:
                match change:
                    case Began():
                        self._begin_span(change)
                    case Ended():
                        self._end_span(change)
                    case Unnamed():
                        self._db.execute("UPDATE jobs SET name = '' WHERE job = ?", (change.job,))
            self._note(reached)
        self.reached = reached

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Do all of the block, or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # after some errors, SQLite has rolled back already
                self._db.execute("ROLLBACK")
            raise

    # --- how far it goes ---

    def _begin(self, origin: SourceJournal, last_line: int) -> Reached:
        with self._transaction():
            try:
                reached = reached_in(self._db)
            except ValueError as error:
                raise HistoryError(f"{self._path} is damaged ({error}): {REMEDY}") from None
            before = self._db.execute("SELECT value FROM meta WHERE key = 'origin'").fetchone()
            if before not in (None, (origin.text,)) or reached.line > last_line:
                reached = Reached()
                for table in _TABLES:
                    self._db.execute(f"DELETE FROM {table}")
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('origin', ?)", (origin.text,))
            self._note(reached)
        return reached

    def _note(self, reached: Reached) -> None:
        noted = {"line": str(reached.line), "time": repr(reached.time), "known_since": repr(reached.known_since)}
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", noted.items())

    # --- spans ---

    def _begin_span(self, span: Began) -> None:
        end = GOES_ON if span.until is None else span.until
        times = (span.at, end, _is_long(span.at, end))
        match span.what:
            case JobSpan() as job:
                self._begin_job(span.key, job, times)
            case RestSpan() as gpu:
                self._db.execute(
                    "INSERT OR REPLACE INTO gpus VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (span.key, gpu.node, gpu.gpu, gpu.number, gpu.pool, gpu.rest.value, *times),
                )
            case BookedSpan() as booked:
                self._db.execute(
                    "INSERT OR REPLACE INTO booked VALUES (?, ?, ?, ?, ?, ?, ?, ?, '')",
                    (span.key, booked.booking, booked.user, booked.node, booked.gpu, *times),
                )

    def _begin_job(self, key: int, job: JobSpan, times: tuple[float, float, bool]) -> None:
        self._db.execute("INSERT OR IGNORE INTO jobs VALUES (?, ?, ?, ?)", (job.job, job.user, job.name, key))
        share = None if job.allocation is None else job.allocation.share
        row = (key, job.job, job.pool, job.attempt, job.doing.value, share, *times)
        self._db.execute("INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '')", row)
        held = [
            (key, piece.node, gpu.gpu, gpu.share, *times) for piece in job.allocation or () for gpu in piece.gpus
        ]  # fmt: skip
        self._db.executemany("INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?, ?, ?)", held)

    def _end_span(self, span: Ended) -> None:
        match span.what:
            case JobSpan() as job:
                self._end_row("spans", span, span.why)
                if job.allocation is not None:
                    self._end_row("held", span)
            case RestSpan():
                self._end_row("gpus", span)
            case BookedSpan():
                self._end_row("booked", span, span.why)

    def _end_row(self, table: str, span: Ended, why: str | None = None) -> None:
        """Note that a span has ended; one that comes to no time at all is removed."""
        self._db.execute(f"DELETE FROM {table} WHERE key = ? AND start >= ?", (span.key, span.at))
        reason = "" if why is None else ", why = :why"
        self._db.execute(
            f"UPDATE {table} SET end = :at, long = :at - start > {DAY_S}{reason} WHERE key = :key",
            {"at": span.at, "key": span.key, "why": why},
        )


REMEDY: Final = "remove it, and it is made again from the journal"
"""What an administrator can do about a file that cannot be read."""


def _is_long(start: float, end: float) -> bool:
    return end - start > DAY_S


def _opened(path: Path) -> sqlite3.Connection:
    """Open the file, and make it if there is none; only the master's account can read it."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")  # what a failing machine takes back is read from the journal again
        db.execute("PRAGMA busy_timeout=5000")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise HistoryError(f"{path} was written by a newer version of Ebbtide (schema {version})")
        if version == 0:
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT")
    except sqlite3.DatabaseError as error:
        db.close()
        if error.sqlite_errorcode in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise HistoryError(f"{path} is damaged ({error}): {REMEDY}") from None
        raise
    except BaseException:
        db.close()
        raise
    return db
