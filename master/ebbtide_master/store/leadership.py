"""Lets one of several masters on one PostgreSQL database lead: the one that holds the lock and has the newest epoch.

The lock belongs to a session and ends with it, and the server ends the session of a leader that sends nothing for
`LEASE_S`. A leader that was paused for longer does not notice that. So each of its transactions first checks whether
its epoch is still the newest, in a way that keeps the next leader from taking over during the transaction.
"""

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ebbtide_master.store.journal import StoreError, StoreInUseError

LEASE_S: Final = 10.0
"""Seconds without a word from the leader after which another master may lead. The leader speaks five times as often."""
POLL_S: Final = 0.5
LOCK: Final = 0x_EBB_71DE
"""Number of the advisory lock that the leader holds; the next number is for the master that makes the tables."""
STANDBY: Final = "ebbtide standby "
"""What the name begins with by which the server knows the session of a master that waits; its own name follows."""
MOST_LETTERS: Final = 63
"""Letters of such a name that the server keeps."""
SCHEMA_VERSION: Final = 1

Connection = psycopg.Connection[Any]

_NEEDED: Final = {"fsync": "on", "data_sync_retry": "off"}
_KEEPALIVE: Final[dict[str, Any]] = {
    "application_name": "ebbtide",
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_TABLES: Final = """
CREATE SCHEMA ebbtide;
CREATE TABLE ebbtide.meta (key text PRIMARY KEY, value text NOT NULL);
CREATE TABLE ebbtide.leader (epoch bigint NOT NULL, name text NOT NULL);
CREATE TABLE ebbtide.events (
    sequence bigint PRIMARY KEY,
    time double precision NOT NULL,
    kind text NOT NULL,
    job text NOT NULL,
    node text NOT NULL,
    body text NOT NULL
);
CREATE INDEX events_by_job ON ebbtide.events (job, sequence) WHERE job <> '';
CREATE TABLE ebbtide.damage (
    sequence bigint PRIMARY KEY, kind text NOT NULL, job text NOT NULL, reason text NOT NULL
);
CREATE TABLE ebbtide.vault (kind text NOT NULL, key text NOT NULL, value text NOT NULL, PRIMARY KEY (kind, key));
REVOKE ALL ON SCHEMA ebbtide FROM PUBLIC;
INSERT INTO ebbtide.leader VALUES (0, '');
"""

log = logging.getLogger(__name__)


class postgres_errors:
    """Turns every error of PostgreSQL into `StoreError` with a message of one line."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, psycopg.Error | OSError):
            raise StoreError(f"the journal failed: {in_one_line(error)}") from error


class Leadership:
    """The only session that writes, which starts when this master leads."""

    def __init__(self, url: str, cluster_id: str, *, wait: bool = True) -> None:
        """Wait while another master leads. A new database gets the id ``cluster_id``.

        Raises `StoreError` if the database cannot be used, and `StoreInUseError` instead of waiting if not ``wait``.
        """
        self.db = _lead(url, cluster_id, wait=wait)
        try:
            with postgres_errors():
                self.epoch = self._count()
        except BaseException:
            self.db.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Hold a transaction that is durable at the end of the block. Raises `StoreError` if another master leads."""
        with postgres_errors(), self.db.transaction():
            # The row stays locked until the transaction ends, and a master that takes over has to wait for that.
            self._check("SELECT epoch, name FROM ebbtide.leader FOR UPDATE")
            yield self.db

    def count(self) -> int:
        """Count the epoch up, and return the new one, which is this master's from now on."""
        with self.writing():
            self.epoch = self._count()
        return self.epoch

    def speak(self) -> None:
        """Show the server that this master is alive. Raises `StoreError` if it does not lead any more."""
        with postgres_errors():
            self._check("SELECT epoch, name FROM ebbtide.leader")

    def _count(self) -> int:
        query = "UPDATE ebbtide.leader SET epoch = epoch + 1, name = %s RETURNING epoch"
        return int(_one(self.db, query, own_name()))

    def _check(self, query: LiteralString) -> None:
        row = self.db.execute(query).fetchone()
        if row is None or row[0] != self.epoch:
            who = f"{row[1]} (epoch {row[0]})" if row else "nobody"
            raise StoreError(f"another master leads now: {who}, and this one has epoch {self.epoch}")


def connect(url: str) -> Connection:
    """Open a session in which every statement is a transaction; the URL's settings win. Raises `psycopg.Error`."""
    settings = make_conninfo(**{**_KEEPALIVE, **conninfo_to_dict(url)})
    return psycopg.connect(settings, autocommit=True)


def own_name() -> str:
    """Return the name under which other masters see this one."""
    return f"{socket.gethostname()} pid {os.getpid()}"


def in_one_line(error: BaseException) -> str:
    """Return the server's message without the hints below it."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


class _Waiting:
    """Logs why this master waits, whenever the reason changes."""

    def __init__(self) -> None:
        self._said = ""

    def say(self, words: str) -> None:
        if words != self._said:
            log.info("standby=waiting %s", words)
        self._said = words


def _lead(url: str, cluster_id: str, *, wait: bool) -> Connection:
    """Return a session that has the lock. Raises `StoreError` if the first connection fails; later ones are retried."""
    waiting = _Waiting()
    with postgres_errors():
        connect(url).close()
        while True:
            try:
                return _in_turn(url, cluster_id, waiting if wait else None)
            except psycopg.OperationalError as error:
                waiting.say(f"database=away reason={in_one_line(error)!r}")
            time.sleep(POLL_S)


def _in_turn(url: str, cluster_id: str, waiting: _Waiting | None) -> Connection:
    db = connect(url)
    try:
        _prepare(db, cluster_id)
        while not _one(db, "SELECT pg_try_advisory_lock(%s)", LOCK):
            leader = _one(db, "SELECT name FROM ebbtide.leader")
            if waiting is None:
                raise StoreInUseError(f"another master leads: {leader}")
            waiting.say(f"leader={leader!r}")
            _be_called(db, f"{STANDBY}{own_name()}")
            time.sleep(POLL_S)
        _be_called(db, "ebbtide")
        _promise(db)
    except BaseException:
        db.close()
        raise
    return db


def _be_called(db: Connection, name: str) -> None:
    """Let the server show this session by ``name``."""
    db.execute("SELECT set_config('application_name', %s, false)", (name[:MOST_LETTERS],))


def _promise(db: Connection) -> None:
    """Let the server end this session, and with it the lock, when the session sends nothing for `LEASE_S`."""
    for setting in ("idle_session_timeout", "idle_in_transaction_session_timeout"):
        db.execute(sql.SQL("SET {} = {}").format(sql.Identifier(setting), sql.Literal(int(LEASE_S * 1000))))
    if _one(db, "SHOW synchronous_commit") == "off":
        db.execute("SET synchronous_commit = on")


def _prepare(db: Connection, cluster_id: str) -> None:
    """Check that the server keeps what it commits, and make the tables in one transaction if there are none."""
    for setting, needed in _NEEDED.items():
        if (found := _one(db, "SELECT current_setting(%s)", setting)) != needed:
            raise StoreError(f"the server has {setting} = {found}: a journal needs {setting} = {needed}")
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK + 1,))
        if _one(db, "SELECT to_regclass('ebbtide.meta')") is None:
            db.execute(_TABLES)
            new = [("cluster_id", cluster_id), ("schema", str(SCHEMA_VERSION))]
            db.cursor().executemany("INSERT INTO ebbtide.meta VALUES (%s, %s)", new)
        version = int(_one(db, "SELECT value FROM ebbtide.meta WHERE key = 'schema'"))
    if version > SCHEMA_VERSION:
        raise StoreError(f"the database was written by a newer version of Ebbtide (schema {version})")


def _one(db: Connection, query: LiteralString, *arguments: object) -> Any:
    """Return the first column of the first row, or None if there is no row."""
    row = db.execute(query, arguments).fetchone()
    return None if row is None else row[0]
