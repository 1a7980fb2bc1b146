"""Opens a master's SQLite files: commits are durable, the file is private, and a wrong file is left unchanged."""

import logging
import os
import secrets
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from ebbtide_master.store.fatal import sqlite_errors
from ebbtide_master.store.journal import StoreError
from ebbtide_master.store.reserve import DiskReserve

log = logging.getLogger(__name__)
T = TypeVar("T")
SCHEMA_VERSION: Final = 1
BACKUPS_NAME: Final = "backups"
RESTORING_NAME: Final = "restoring"
"""Name of the file that exists while a backup is restored."""
HEADER: Final = b"SQLite format 3\0"
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
DAMAGE_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS damage (
    sequence INTEGER PRIMARY KEY, kind TEXT NOT NULL, job TEXT NOT NULL, reason TEXT NOT NULL
) STRICT
"""
"""Schema of a table that is made only when it is needed; versions that do not know it can still read the journal."""


def open_journal(path: Path) -> sqlite3.Connection:
    """Open the journal for writing, and make it if there is none. Raises `StoreError` and then changes nothing."""
    _check_header(path)
    with sqlite_errors():
        db = connect(path)
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            db.close()
            raise StoreError(f"{path} was written by a newer version of Ebbtide (schema {version})")
        if version == 0:
            identity = f"INSERT INTO meta VALUES ('cluster_id', '{secrets.token_hex(8)}'), ('epoch', '0');"
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {identity} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT")
        return db


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection for writing, whose commits are on the disk when they return."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    db = sqlite3.connect(path, isolation_level=None)
    mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(f"{path}: SQLite uses journal mode {mode} instead of wal")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA busy_timeout=5000")
    return db


def reading(path: Path) -> sqlite3.Connection:
    """Open a connection for reading, which may be passed from thread to thread."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)


def transaction(db: sqlite3.Connection, change: Callable[[sqlite3.Connection], T], reserve: DiskReserve) -> T:
    """Make ``change`` in one durable transaction; on a full disk, give up the ``reserve`` and try once more."""
    try:
        return _attempt(db, change)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_FULL or not reserve.give_up():
            raise
        log.warning("disk=full: what was kept for this is given up, and no job is accepted")
        return _attempt(db, change)


def _attempt(db: sqlite3.Connection, change: Callable[[sqlite3.Connection], T]) -> T:
    db.execute("BEGIN IMMEDIATE")
    try:
        answer = change(db)
        db.execute("COMMIT")
        return answer
    except sqlite3.Error:
        if db.in_transaction:  # after some errors, SQLite has rolled back already
            db.execute("ROLLBACK")
        raise


def _check_header(path: Path) -> None:
    """Raise `StoreError` if the file at ``path`` is no database, or was lost, or was not restored completely."""
    with sqlite_errors():
        start = b""
        if path.exists():
            with path.open("rb") as file:
                start = file.read(len(HEADER))
        backups = path.with_name(BACKUPS_NAME)
        lost = not start and backups.is_dir() and any(backups.iterdir())
        restoring = path.with_name(RESTORING_NAME).exists()
    if restoring:
        raise StoreError(f"a backup was not put back to the end in {path.parent}: do it again")
    if lost:
        raise StoreError(f"{path} is {'empty' if path.exists() else 'not there'}, and there are backups of it")
    if start and start != HEADER:
        raise StoreError(f"{path} is damaged, or not a database: it does not begin as those of SQLite do")
