"""The journal in PostgreSQL: one master leads, another waits, and who does not lead any more writes nothing."""

import logging
import queue
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.model.types import JobId
from ebbtide_master.identity.caller import Role
from ebbtide_master.identity.identities import Identities
from ebbtide_master.initialise import initialise
from ebbtide_master.store import leadership
from ebbtide_master.store.journal import StoreError, StoreInUseError
from ebbtide_master.store.leadership import Leadership
from ebbtide_master.store.postgres import PostgresStore
from ebbtide_master.store.vault import EntryKind
from ebbtide_protos.invitation import decode

from tests.postgres import Server, rows

pytestmark = pytest.mark.postgres

WAIT_S = 40.0
AFTER_RESTORE = Path(__file__).resolve().parents[3] / "deploy" / "postgresql" / "after_restore.sql"


def cancelled(number: int) -> Event:
    return e.CancelRequested(JobId(str(number)))


def append(store: PostgresStore, *events: Event) -> None:
    store.append([(1.0, event) for event in events]).result(WAIT_S)


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.database()


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[PostgresStore]:
    """The first master's."""
    store = PostgresStore(url, tmp_path / "first")
    yield store
    store.close()


def depose(url: str) -> None:
    """Another master leads, and the first has not noticed."""
    rows(url, "UPDATE ebbtide.leader SET epoch = 7, name = 'elsewhere pid 3'")


class Standby:
    """A second master's store, which is there once the first one does not lead any more."""

    def __init__(self, url: str, home: Path) -> None:
        self._opened: list[PostgresStore] = []
        self._thread = threading.Thread(target=lambda: self._opened.append(PostgresStore(url, home)), daemon=True)
        self._said: queue.Queue[str] = queue.Queue()
        self._handler = logging.Handler(logging.INFO)
        self._handler.emit = lambda record: self._said.put(record.getMessage())  # type: ignore[method-assign]
        leadership.log.addHandler(self._handler)
        self._thread.start()

    def says(self) -> str:
        """Its next word, which it may have to wait for."""
        return self._said.get(timeout=WAIT_S)

    @property
    def leads(self) -> bool:
        return bool(self._opened)

    def store(self) -> PostgresStore:
        """Its journal, once it leads."""
        self._thread.join(WAIT_S)
        return self._opened[0]

    def close(self) -> None:
        self.store().close()
        leadership.log.removeHandler(self._handler)


@pytest.fixture
def standby(url: str, store: PostgresStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Standby]:
    """A second master, that has said that it waits."""
    caplog.set_level(logging.INFO)
    standby = Standby(url, tmp_path / "second")
    assert standby.says() == f"standby=waiting leader='{leadership.own_name()}'"
    yield standby
    store.close()
    standby.close()


def wait_until_nobody_leads(url: str) -> None:
    """A server gives up the lock of a session soon after its client has closed the connection, and not before."""
    here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    deadline = time.monotonic() + WAIT_S
    while rows(url, f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND {here}"):
        assert time.monotonic() < deadline, "the lock of a master that has ended is still held"
        time.sleep(0.01)


class TestStandby:
    def test_it_leads_when_the_leader_stops_and_goes_on_where_it_was(
        self, store: PostgresStore, standby: Standby
    ) -> None:
        append(store, cancelled(1), cancelled(2))
        identity, epoch = store.cluster_id, store.next_epoch()
        assert not standby.leads
        store.close()
        second = standby.store()
        assert (second.cluster_id, second.last_sequence) == (identity, 2)
        assert second.next_epoch() == epoch + 1
        append(second, cancelled(3))
        assert [line.sequence for line in second.events()] == [1, 2, 3]

    def test_it_leads_when_the_server_gives_up_the_leader_which_then_can_write_nothing(
        self, url: str, store: PostgresStore, standby: Standby
    ) -> None:
        append(store, cancelled(1))
        here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        pid = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND {here}"
        rows(url, f"SELECT pg_terminate_backend(({pid}))")
        second = standby.store()
        with pytest.raises(StoreError, match="the journal failed: "):
            append(store, cancelled(2))
        append(second, cancelled(3))
        assert [line.event for line in second.events()] == [cancelled(1), cancelled(3)]

    def test_it_waits_through_a_restart_of_the_server(
        self, postgres: Server, store: PostgresStore, standby: Standby
    ) -> None:
        append(store, cancelled(1))
        postgres.stop()
        assert standby.says().startswith("standby=waiting database=away reason=")
        with pytest.raises(StoreError, match="the journal failed: "):
            append(store, cancelled(2))
        postgres.start()
        assert [line.event for line in standby.store().events()] == [cancelled(1)]


class TestALeaderThatWasOvertaken:
    """Its session lives on all the same, as through a pooler of connections that does not know of sessions' locks."""

    def test_it_writes_nothing(self, url: str, store: PostgresStore) -> None:
        append(store, cancelled(1))
        depose(url)
        words = r"another master leads now: elsewhere pid 3 \(epoch 7\), and this one has epoch 1"
        with pytest.raises(StoreError, match=words):
            append(store, cancelled(2))
        with pytest.raises(StoreError, match=words):
            store.vault.put(EntryKind.USER, {"eve": "{}"}).result(WAIT_S)
        with pytest.raises(StoreError, match=words):
            store.note_notified({"a": 1}).result(WAIT_S)
        assert store.next_epoch() == 1  # that was counted before
        with pytest.raises(StoreError, match=words):
            store.next_epoch()
        assert [line.event for line in store.events()] == [cancelled(1)]
        assert (store.vault.read(EntryKind.USER), store.notified(), store.last_sequence) == ({}, {}, 1)

    def test_it_learns_of_it_also_when_it_has_nothing_to_write(self, url: str, tmp_path: Path) -> None:
        with closing(PostgresStore(url, tmp_path)) as store:
            depose(url)
            assert "another master leads now" in str(store.lost.exception(WAIT_S))

    def test_who_wants_to_lead_waits_for_the_last_write(self, url: str, store: PostgresStore) -> None:
        """Else the next leader would read the journal, and the one before would add to it after that."""
        with store._leadership.writing() as db:
            db.execute("INSERT INTO ebbtide.meta VALUES ('last', 'write')")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                rows(f"{url}&options=-clock_timeout%3D100", "UPDATE ebbtide.leader SET epoch = epoch + 1")


def test_the_server_itself_ends_the_session_of_a_leader_that_says_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "LEASE_S", 3.0)
    silent = Leadership(url, "c1")
    with closing(PostgresStore(url, tmp_path)) as store:
        assert (store.cluster_id, store.next_epoch()) == ("c1", 2)
    with pytest.raises(StoreError, match="idle-session timeout"):
        silent.speak()


class TestTheServer:
    def test_one_that_may_lose_what_it_confirmed_is_refused(self, postgres: Server, url: str, tmp_path: Path) -> None:
        postgres.set("fsync", "off")
        try:
            with pytest.raises(StoreError, match="fsync = off: a journal needs fsync = on"):
                PostgresStore(url, tmp_path)
        finally:
            postgres.set("fsync", "on")

    def test_commits_are_on_its_disk_whatever_the_database_says(self, url: str, tmp_path: Path) -> None:
        rows(url, f"ALTER DATABASE {psycopg.conninfo.conninfo_to_dict(url)['dbname']} SET synchronous_commit = off")
        with closing(PostgresStore(url, tmp_path)) as store:
            assert store._leadership.db.execute("SHOW synchronous_commit").fetchone() == ("on",)

    def test_tables_of_a_newer_version_are_refused_and_left_as_they_are(self, url: str, tmp_path: Path) -> None:
        PostgresStore(url, tmp_path).close()
        rows(url, "UPDATE ebbtide.meta SET value = '999' WHERE key = 'schema'")
        with pytest.raises(StoreError, match=r"a newer version of Ebbtide \(schema 999\)"):
            PostgresStore(url, tmp_path)
        assert rows(url, "SELECT value FROM ebbtide.meta WHERE key = 'schema'") == [("999",)]
        assert rows(url, "SELECT epoch FROM ebbtide.leader") == [(1,)]

    def test_one_that_does_not_answer_is_named_and_the_home_is_free_again(
        self, postgres: Server, tmp_path: Path
    ) -> None:
        for _ in range(2):
            with pytest.raises(StoreError, match=r"the journal failed: connection failed: .*Connection refused"):
                PostgresStore("postgresql://u@127.0.0.1:1/x", tmp_path)

    def test_a_password_is_in_no_error(self, postgres: Server, url: str, tmp_path: Path) -> None:
        PostgresStore(postgres.url_with_password(url), tmp_path).close()
        wrong = postgres.url_with_password(url, "wr0ng-canary")
        with pytest.raises(StoreError, match="password authentication failed") as error:
            PostgresStore(wrong, tmp_path)
        assert "canary" not in "".join(traceback.format_exception(error.value))

    def test_other_accounts_of_the_server_cannot_read_the_vault(self, url: str, store: PostgresStore) -> None:
        store.vault.put(EntryKind.TOKEN, {"t": "secret"}).result(WAIT_S)
        rows(url, "DO $$ BEGIN CREATE ROLE guest; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows(url, "SET ROLE guest; SELECT * FROM ebbtide.vault")


def test_the_first_admin_is_one_of_the_database_that_the_configuration_names(url: str, tmp_path: Path) -> None:
    (tmp_path / "ebbtide.toml").write_text(f'[journal]\nstore = "{url}"\n')
    with closing(PostgresStore(url, tmp_path / "other")), pytest.raises(StoreInUseError, match="another master leads"):
        initialise(tmp_path, ("localhost",), 4711)
    wait_until_nobody_leads(url)
    initialise(tmp_path, ("localhost",), 4711)
    assert not (tmp_path / "journal.db").exists()
    assert len(rows(url, "SELECT key FROM ebbtide.vault WHERE kind = 'token'")) == 1


def test_a_dump_that_was_put_back_goes_on_with_a_higher_epoch_and_other_ids(url: str, tmp_path: Path) -> None:
    with closing(PostgresStore(url, tmp_path)) as store:
        append(store, cancelled(1))
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(AFTER_RESTORE.read_bytes())
    with closing(PostgresStore(url, tmp_path)) as store:
        assert store.next_epoch() == 1002
        assert store.restored is not None
        assert list(store.events())[-1].event == e.JournalRestored(1.0, 100_000)


def test_each_time_that_a_dump_is_put_back_is_another_one(url: str, tmp_path: Path) -> None:
    with closing(PostgresStore(url, tmp_path)) as store:
        append(store, cancelled(1))
    times = set[float]()
    with psycopg.connect(url, autocommit=True) as db:
        for _ in range(2):
            db.execute(AFTER_RESTORE.read_bytes())
            [(at,)] = db.execute("DELETE FROM ebbtide.events WHERE kind = 'JournalRestored' RETURNING time").fetchall()
            times.add(at)
    assert len(times) == 2


def test_the_first_admin_of_a_cluster_on_a_database_is_known_there(url: str, tmp_path: Path) -> None:
    done = initialise(tmp_path / "home", ("login.lab",), None, url)
    assert done.invitation is not None
    assert not (tmp_path / "home" / "journal.db").exists()
    store = PostgresStore(url, tmp_path)
    try:
        secret = decode(done.invitation).secret
        assert Identities(store.vault).caller(secret, time.time()).role is Role.ADMIN
        with pytest.raises(StoreInUseError):
            initialise(tmp_path / "other", ("standby.lab",), None, url)
    finally:
        store.close()
