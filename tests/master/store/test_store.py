"""The journal: what append has said yes to is there, whatever happens; what cannot be trusted is not used."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.model.types import JobId
from ebbtide_master.store import sqlite as stores
from ebbtide_master.store.journal import StoreError, StoreInUseError
from ebbtide_master.store.sqlite import SqliteStore


def cancelled(number: int) -> Event:
    return e.CancelRequested(JobId(str(number)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


def append(store: SqliteStore, *events: Event, time: float = 1.0) -> None:
    store.append([(time, event) for event in events]).result(30)


def test_two_new_journals_are_two_clusters(tmp_path: Path) -> None:
    with (
        closing(SqliteStore(tmp_path / "a" / "journal.db")) as a,
        closing(SqliteStore(tmp_path / "b" / "journal.db")) as b,
    ):
        assert a.cluster_id != b.cluster_id


def test_any_name_of_a_directory_will_do(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "50% of? #1 ü" / "journal.db")) as store:
        append(store, cancelled(1))
        assert len(list(store.events())) == 1


def test_only_its_owner_can_read_it(store: SqliteStore, path: Path) -> None:
    assert path.stat().st_mode & 0o077 == 0


def test_a_second_master_on_the_same_journal_is_refused(store: SqliteStore, path: Path) -> None:
    with pytest.raises(StoreInUseError, match="another master"):
        SqliteStore(path)
    append(store, cancelled(1))


def test_commits_are_durable_and_readers_do_not_wait_for_them(store: SqliteStore) -> None:
    pragmas = store._writer.submit(
        lambda: [store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    )
    assert pragmas.result() == ["wal", 2]


def test_a_journal_of_a_newer_schema_is_refused_and_left_as_it_is(path: Path) -> None:
    SqliteStore(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {stores.SCHEMA_VERSION + 1}")
    with pytest.raises(StoreError, match="newer version"):
        SqliteStore(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (stores.SCHEMA_VERSION + 1,)


def test_what_is_no_journal_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"this is somebody's diary, not a database" * 100)
    with pytest.raises(StoreError, match="not a database"):
        SqliteStore(path)
    assert path.read_bytes().startswith(b"this is somebody's diary")


def test_after_a_refused_start_another_one_is_possible(path: Path) -> None:
    path.write_bytes(b"garbage" * 1000)
    with pytest.raises(StoreError):
        SqliteStore(path)
    path.unlink()
    SqliteStore(path).close()


def test_a_home_that_cannot_be_made_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="journal failed"):
        SqliteStore(tmp_path / "file" / "journal.db")


def test_a_new_journal_has_its_identity_or_is_empty(path: Path) -> None:
    """Whatever the moment of a crash, no half-made journal is left: everything is made in one transaction."""
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        db = connect(*args, **kwargs)
        if args[0] == path:
            db.set_trace_callback(lambda text: statements.append(text.split()[0].strip(";")))
        return db

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", traced)
        SqliteStore(path).close()
    begin, end = statements.index("BEGIN"), statements.index("COMMIT")
    changes = [index for index, word in enumerate(statements) if word in ("CREATE", "INSERT")]
    assert len(changes) == 4
    assert all(begin < index < end for index in changes)


class TestFailures:
    def test_a_batch_that_cannot_be_committed_is_an_error_and_leaves_nothing(
        self, store: SqliteStore, path: Path
    ) -> None:
        append(store, cancelled(1))
        store._writer.submit(store._db.execute, "PRAGMA query_only = ON").result()
        with pytest.raises(StoreError, match="journal failed"):
            append(store, cancelled(2), cancelled(3))
        assert [line.event for line in store.events()] == [cancelled(1)]
        assert store.last_sequence == 1

    def test_a_batch_that_fails_half_way_leaves_nothing(self, path: Path) -> None:
        with closing(SqliteStore(path)) as store:
            append(store, cancelled(1))
            with closing(sqlite3.connect(path)) as db:  # somebody else wrote the line after the next
                db.execute("INSERT INTO events SELECT 3, time, kind, job, node, body FROM events")
                db.commit()
            with pytest.raises(StoreError, match="UNIQUE"):
                append(store, cancelled(2), cancelled(3))
        with closing(SqliteStore(path)) as store:
            assert [line.sequence for line in store.events()] == [1, 3]

    def test_a_journal_that_was_taken_away_is_an_error(self, store: SqliteStore) -> None:
        store._writer.submit(store._db.close).result()
        with pytest.raises(StoreError):
            append(store, cancelled(1))
        with pytest.raises(StoreError):
            store.next_epoch()

    @pytest.mark.parametrize(
        ("kind", "body", "words"),
        [
            ("TeaBrewed", "{}", "TeaBrewed, was written by a newer version"),
            ("NodeLost", "{", "NodeLost, is damaged"),
            ("NodeLost", "{}", "NodeLost, is damaged"),
            ("NodeLost", "[1]", "NodeLost, is damaged"),
            ("StopRequested", '{"cause": "boredom"}', "StopRequested, is damaged"),
        ],
    )
    def test_a_line_that_cannot_be_read_is_named(
        self, store: SqliteStore, path: Path, kind: str, body: str, words: str
    ) -> None:
        append(store, cancelled(1))
        with closing(sqlite3.connect(path)) as db:
            db.execute("INSERT INTO events VALUES (2, 1.0, ?, '', '', ?)", (kind, body))
            db.commit()
        with pytest.raises(StoreError, match=f"line 2 of the journal, {words}"):
            list(store.events())

    def test_a_disk_without_room_is_noticed(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        assert store.has_room()
        free = os.statvfs(store._path.parent)
        monkeypatch.setattr(stores, "RESERVED_BYTES", free.f_bavail * free.f_frsize * 2)
        assert not store.has_room()
