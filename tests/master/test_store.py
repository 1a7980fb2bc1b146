"""The journal: what append has said yes to is there, whatever happens; what cannot be trusted is not used."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.model import JobId, NodeId
from ebbtide_master import store as stores
from ebbtide_master.store import Store, StoreError, StoreInUseError

WRITER = Path(__file__).parent / "journal_writer.py"


def cancelled(number: int) -> Event:
    return e.CancelRequested(JobId(str(number)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


def append(store: Store, *events: Event, time: float = 1.0) -> None:
    store.append([(time, event) for event in events]).result(10)


def test_events_come_back_in_the_order_in_which_they_were_appended(store: Store) -> None:
    events = [cancelled(1), e.NodeLost(NodeId("n1"), 2.5), e.MasterStarted(3), cancelled(2)]
    append(store, *events[:3], time=7.25)
    append(store, events[3], time=8.5)
    lines = list(store.events())
    assert [line.event for line in lines] == events
    assert [line.sequence for line in lines] == [1, 2, 3, 4]
    assert [line.time for line in lines] == [7.25, 7.25, 7.25, 8.5]


def test_the_journal_can_be_read_from_a_line_on_in_parts_and_for_one_job(store: Store) -> None:
    append(store, cancelled(1), e.MasterStarted(1), cancelled(2), cancelled(1))
    assert [line.sequence for line in store.events(after=2)] == [3, 4]
    assert [line.sequence for line in store.events(after=1, limit=2)] == [2, 3]
    assert [line.sequence for line in store.events(job="1")] == [1, 4]
    assert list(store.events(job="")) == []
    assert list(store.events(after=2**64 - 1)) == []


def test_a_journal_that_is_opened_again_goes_on_where_it_was(path: Path) -> None:
    with closing(Store(path)) as first:
        append(first, cancelled(1), time=5.0)
        assert first.next_epoch() == 1
        identity = first.cluster_id
    with closing(Store(path)) as second:
        assert (second.cluster_id, second.last_sequence, second.last_time) == (identity, 1, 5.0)
        assert second.next_epoch() == 2
        append(second, cancelled(2))
        assert [line.sequence for line in second.events()] == [1, 2]


def test_two_new_journals_are_two_clusters(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "a" / "journal.db")) as a, closing(Store(tmp_path / "b" / "journal.db")) as b:
        assert a.cluster_id != b.cluster_id


def test_any_name_of_a_directory_will_do(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "50% of? #1 ü" / "journal.db")) as store:
        append(store, cancelled(1))
        assert len(list(store.events())) == 1


def test_only_its_owner_can_read_it(store: Store, path: Path) -> None:
    assert path.stat().st_mode & 0o077 == 0


def test_a_second_master_on_the_same_journal_is_refused(store: Store, path: Path) -> None:
    with pytest.raises(StoreInUseError, match="another master"):
        Store(path)
    append(store, cancelled(1))


def test_commits_are_durable_and_readers_do_not_wait_for_them(store: Store) -> None:
    pragmas = store._writer.submit(
        lambda: [store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    )
    assert pragmas.result() == ["wal", 2]


def test_a_journal_of_a_newer_schema_is_refused_and_left_as_it_is(path: Path) -> None:
    Store(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {stores.SCHEMA_VERSION + 1}")
    with pytest.raises(StoreError, match="newer version"):
        Store(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (stores.SCHEMA_VERSION + 1,)


def test_what_is_no_journal_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"this is somebody's diary, not a database" * 100)
    with pytest.raises(StoreError, match="not a database"):
        Store(path)
    assert path.read_bytes().startswith(b"this is somebody's diary")


def test_after_a_refused_start_another_one_is_possible(path: Path) -> None:
    path.write_bytes(b"garbage" * 1000)
    with pytest.raises(StoreError):
        Store(path)
    path.unlink()
    Store(path).close()


def test_a_home_that_cannot_be_made_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="journal failed"):
        Store(tmp_path / "file" / "journal.db")


def test_a_new_journal_has_its_identity_or_is_empty(path: Path) -> None:
    """Whatever the moment of a crash, no half-made journal is left: everything is made in one transaction."""
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        db = connect(*args, **kwargs)
        db.set_trace_callback(lambda text: statements.append(text.split()[0].strip(";")))
        return db

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", traced)
        Store(path).close()
    begin, end = statements.index("BEGIN"), statements.index("COMMIT")
    changes = [index for index, word in enumerate(statements) if word in ("CREATE", "INSERT")]
    assert len(changes) == 4
    assert all(begin < index < end for index in changes)


class TestFailures:
    def test_a_batch_that_cannot_be_committed_is_an_error_and_leaves_nothing(self, store: Store, path: Path) -> None:
        append(store, cancelled(1))
        store._writer.submit(store._db.execute, "PRAGMA query_only = ON").result()
        with pytest.raises(StoreError, match="journal failed"):
            append(store, cancelled(2), cancelled(3))
        assert [line.event for line in store.events()] == [cancelled(1)]
        assert store.last_sequence == 1

    def test_a_batch_that_fails_half_way_leaves_nothing(self, path: Path) -> None:
        with closing(Store(path)) as store:
            append(store, cancelled(1))
            with closing(sqlite3.connect(path)) as db:  # somebody else wrote the line after the next
                db.execute("INSERT INTO events SELECT 3, time, kind, job, node, body FROM events")
                db.commit()
            with pytest.raises(StoreError, match="UNIQUE"):
                append(store, cancelled(2), cancelled(3))
        with closing(Store(path)) as store:
            assert [line.sequence for line in store.events()] == [1, 3]

    def test_a_journal_that_was_taken_away_is_an_error(self, store: Store) -> None:
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
        self, store: Store, path: Path, kind: str, body: str, words: str
    ) -> None:
        append(store, cancelled(1))
        with closing(sqlite3.connect(path)) as db:
            db.execute("INSERT INTO events VALUES (2, 1.0, ?, '', '', ?)", (kind, body))
            db.commit()
        with pytest.raises(StoreError, match=f"line 2 of the journal, {words}"):
            list(store.events())

    def test_a_disk_without_room_is_noticed(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        assert store.has_room()
        free = os.statvfs(store._path.parent)
        monkeypatch.setattr(stores, "RESERVED_BYTES", free.f_bavail * free.f_frsize * 2)
        assert not store.has_room()


def test_kill_9_at_any_moment_loses_nothing_that_append_returned_for(path: Path) -> None:
    """The writer prints each number once it is durable; whatever it had printed when it died must be there."""
    promised = 0
    for delay_s in (0.0, 0.003, 0.01, 0.02, 0.05):
        with subprocess.Popen([sys.executable, WRITER, path], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            with contextlib.suppress(subprocess.TimeoutExpired):
                writer.wait(delay_s)
            writer.kill()
            whole_lines = [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
        assert writer.returncode == -signal.SIGKILL
        promised = int(whole_lines[-1]) if whole_lines else promised
        with closing(Store(path)) as store:
            lines = list(store.events())
            assert [line.sequence for line in lines] == list(range(1, len(lines) + 1))
            assert len(lines) >= promised
            assert store.last_sequence == len(lines)
    assert promised > 0
