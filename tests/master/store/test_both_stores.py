"""What a master relies on, whatever keeps its journal: a file, or a database on a server."""

import contextlib
import math
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_master.store.journal import About, DamagedLineError, Store, StoreInUseError
from ebbtide_master.store.postgres import PostgresStore
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_master.store.vault import EntryKind

from tests.postgres import rows

WRITER = Path(__file__).parents[1] / "journal_writer.py"

Open = Callable[[], Store]


def cancelled(number: int) -> Event:
    return e.CancelRequested(JobId(str(number)))


def append(store: Store, *events: Event, time: float = 1.0) -> None:
    store.append([(time, event) for event in events]).result(30)


@pytest.fixture(params=["file", pytest.param("database", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest) -> str:
    """Where a journal may be: the URL of a database, or empty for a file in the master's home."""
    return request.getfixturevalue("postgres").database() if request.param == "database" else ""


@pytest.fixture
def open_store(place: str, tmp_path: Path) -> Open:
    """Opens the journal, again and again the same."""
    home = tmp_path / "home"
    return lambda: PostgresStore(place, home) if place else SqliteStore(home / "journal.db")


@pytest.fixture
def store(open_store: Open) -> Iterator[Store]:
    with closing(open_store()) as store:
        yield store


def test_events_come_back_in_the_order_in_which_they_were_appended(store: Store) -> None:
    events = [cancelled(1), e.NodeLost(NodeId("n1"), 2.5), e.MasterStarted(3), cancelled(2)]
    append(store, *events[:3], time=7.25)
    append(store, events[3], time=8.5)
    lines = list(store.events())
    assert [line.event for line in lines] == events
    assert [line.sequence for line in lines] == [1, 2, 3, 4]
    assert [line.time for line in lines] == [7.25, 7.25, 7.25, 8.5]


def test_the_journal_can_be_read_from_a_line_on_in_parts_for_one_job_and_by_kind(store: Store) -> None:
    append(store, cancelled(1), e.MasterStarted(1), cancelled(2), cancelled(1))
    assert [line.sequence for line in store.events(after=2)] == [3, 4]
    assert [line.sequence for line in store.events(after=1, limit=2)] == [2, 3]
    assert [line.sequence for line in store.events(limit=0)] == []
    assert [line.sequence for line in store.events(job="1")] == [1, 4]
    assert [line.sequence for line in store.events(kinds=["MasterStarted", "NodeLost"])] == [2]
    assert list(store.events(job="")) == []
    assert list(store.events(after=2**64 - 1)) == []


def test_the_newest_lines_come_first_as_far_as_they_are_of_what_is_looked_for(store: Store) -> None:
    lost = e.NodeLost(NodeId("n1"), 2.5)
    append(store, cancelled(1), lost, cancelled(2), cancelled(1), e.NodeLost(NodeId("n2"), 3.0))

    def found(before: int = 9, **asked: int) -> list[int]:
        return [line.sequence for line in store.newest(before, **asked)]

    assert found() == [5, 4, 3, 2, 1]
    assert found(before=4, after=1) == [3, 2]
    assert found(limit=2) == [5, 4]
    assert found(before=0) == found(after=2**64 - 1) == []
    assert found(before=2**64 - 1, limit=1) == [5]
    looked_for = {
        About(job="1"): [4, 1], About(kinds=("NodeLost",)): [5, 2], About(node="n1"): [2],
        About(kinds=("NodeLost",), node="n2"): [5], About(kinds=("MasterStarted",)): [], About(job="1", node="n1"): [],
    }  # fmt: skip
    assert {about: [line.sequence for line in store.newest(9, about=about)] for about in looked_for} == looked_for
    assert [line.event for line in store.newest(3, limit=1)] == [lost]


def test_reading_may_be_broken_off(store: Store) -> None:
    append(store, *(cancelled(number) for number in range(1, 10)))
    lines = store.events()
    assert next(lines).sequence == 1
    lines.close()  # type: ignore[attr-defined]
    append(store, cancelled(10))
    assert store.last_sequence == 10


def test_a_journal_that_is_opened_again_goes_on_where_it_was(open_store: Open) -> None:
    with closing(open_store()) as first:
        append(first, cancelled(1), time=5.0)
        assert first.next_epoch() == 1
        identity = first.cluster_id
    with closing(open_store()) as second:
        assert (second.cluster_id, second.last_sequence, second.last_time) == (identity, 1, 5.0)
        assert second.next_epoch() == 2
        append(second, cancelled(2))
        assert [line.sequence for line in second.events()] == [1, 2]


def test_a_journal_that_is_opened_again_goes_on_at_the_time_of_its_last_line(open_store: Open) -> None:
    with closing(open_store()) as first:
        append(first, cancelled(1), time=90.0)
        append(first, cancelled(2), time=5.0)
    with closing(open_store()) as second:
        assert (second.last_sequence, second.last_time) == (2, 5.0)


def test_the_lines_of_a_time_are_found_although_times_went_back(store: Store) -> None:
    for number, time in enumerate((1.0, 90.0, 91.0, 2.0, 3.0, 4.0), start=1):
        append(store, cancelled(number), time=time)
    times = {
        (90.0, math.inf): range(2, 4),
        (2.0, math.inf): range(2, 7),
        (0.0, 3.0): range(1, 6),
        (2.0, 3.0): range(4, 6),
    }
    assert {asked: store.recorded(*asked, before=7) for asked in times} == times
    assert not store.recorded(92.0, math.inf, before=7)
    assert store.recorded(2.0, math.inf, before=6, after=2) == range(3, 6)
    assert not store.recorded(2.0, math.inf, before=2**64, after=2**64 - 1)
    assert [line.sequence for line in store.newest(9, about=About(since=2.0, until=3.0))] == [5, 4]
    assert [line.sequence for line in store.newest(9, about=About(since=90.0))] == [3, 2]


def test_any_text_comes_back_as_it_was(store: Store) -> None:
    odd = e.NodeDrained(
        node=NodeId("n\u00fc"), user="ann\x00\ud800\u202e", reason="'; DROP TABLE events --", deadline=None
    )
    append(store, odd)
    assert [line.event for line in store.events()] == [odd]


def test_a_second_master_in_the_same_home_is_refused(open_store: Open, store: Store) -> None:
    with pytest.raises(StoreInUseError, match="another master uses"):
        open_store()
    append(store, cancelled(1))


def test_a_damaged_line_is_set_aside_once_and_for_all(open_store: Open, place: str, tmp_path: Path) -> None:
    with closing(open_store()) as store:
        append(store, cancelled(1), cancelled(2), cancelled(3))
    if place:
        rows(place, "UPDATE ebbtide.events SET body = '{' WHERE sequence = 2")
    else:
        with closing(sqlite3.connect(tmp_path / "home" / "journal.db")) as db, db:
            db.execute("UPDATE events SET body = '{' WHERE sequence = 2")
    with closing(open_store()) as store:
        with pytest.raises(DamagedLineError, match="line 2 of the journal, CancelRequested, is damaged"):
            list(store.events())
        store.set_damage_aside()
        assert [line.sequence for line in store.events()] == [1, 3]
    with closing(open_store()) as store:
        assert [line.sequence for line in store.events()] == [1, 3]
        assert {number: line.job for number, line in store.damage.items()} == {2: "2"}
        assert (store.restored, store.last_sequence) == (None, 3)


def test_what_targets_were_told_is_kept(open_store: Open) -> None:
    with closing(open_store()) as store:
        assert store.notified() == {}
        store.note_notified({"a": 1}).result(30)
        store.note_notified({"a": 2, "b": 3}).result(30)
    with closing(open_store()) as store:
        assert store.notified() == {"a": 2, "b": 3}


def test_the_vault_keeps_entries_by_kind_until_they_are_removed(open_store: Open) -> None:
    with closing(open_store()) as store:
        store.vault.put(EntryKind.USER, {"ann": "1", "bob": "2"}).result(30)
        store.vault.put(EntryKind.TOKEN, {"ann": "3"}).result(30)
        store.vault.put(EntryKind.USER, {"ann": "4", "bob": None, "nobody": None}).result(30)
    with closing(open_store()) as store:
        assert store.vault.read(EntryKind.USER) == {"ann": "4"}
        assert store.vault.read(EntryKind.TOKEN) == {"ann": "3"}
        assert store.vault.read(EntryKind.NODE) == {}


def test_kill_9_at_any_moment_loses_nothing_that_append_returned_for(
    open_store: Open, place: str, tmp_path: Path
) -> None:
    """The writer prints each number once it is durable; whatever it had printed when it died must be there."""
    promised = 0
    for printed, delay_s in ((0, 0.0), (0, 0.003), (1, 0.0), (1, 0.01), (2, 0.02)):
        command = [sys.executable, WRITER, tmp_path / "home", place]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            before = [writer.stdout.readline() for _ in range(printed)]
            with contextlib.suppress(subprocess.TimeoutExpired):
                writer.wait(delay_s)
            writer.kill()
            after = writer.stdout.read().splitlines(keepends=True)
            whole_lines = [line for line in (*before, *after) if line.endswith(b"\n")]
        assert writer.returncode == -signal.SIGKILL
        promised = int(whole_lines[-1]) if whole_lines else promised
        with closing(open_store()) as store:
            lines = list(store.events())
            assert [line.sequence for line in lines] == list(range(1, len(lines) + 1))
            assert len(lines) >= promised
            assert store.last_sequence == len(lines)
    assert promised > 0
