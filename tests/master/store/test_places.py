"""Where a journal may lie, and what becomes of it where there is no room."""

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from ebbtide_core import events as e
from ebbtide_core.model.types import JobId
from ebbtide_master.store import place, reserve
from ebbtide_master.store import sqlite as stores
from ebbtide_master.store.journal import StoreError
from ebbtide_master.store.reserve import RESERVE_BYTES
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_master.store.vault import EntryKind
from ebbtide_protos.v1 import client_pb2

from tests.master.world import a_master, refused

MOUNTS = """
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:5 / /home rw - nfs4 server:/home rw,vers=4.2
24 23 0:6 / /home/ann/local\\040disk rw - xfs /dev/vdb rw
25 22 0:7 / /lab rw - fuse.sshfs ann@lab: rw
26 22 0:8 / /twice rw - ext4 /dev/vdc rw
27 22 0:9 / /twice rw - cifs //server/twice rw
28 22 0:10 / /run/user/1000/doc rw - fuse.portal portal rw
""".lstrip()


class TestPlace:
    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("/", "ext4"),
            ("/homes", "ext4"),
            ("/home", "nfs4"),
            ("/home/ann/.local/state/ebbtide", "nfs4"),
            ("/home/ann/local disk/ebbtide", "xfs"),
            ("/lab/x", "fuse.sshfs"),
            ("/twice/x", "cifs"),
        ],
    )
    def test_the_innermost_and_latest_mount_tells_the_kind(self, path: str, kind: str) -> None:
        assert place.filesystem_of(Path(path), MOUNTS) == kind

    @pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "lustre", "fuse.sshfs"])
    def test_a_network_filesystem_is_refused(self, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        mounts = tmp_path / "mounts"
        mounts.write_text(f"22 1 254:0 / / rw - {kind} server:/x rw\n")
        monkeypatch.setattr(place, "MOUNTS", mounts)
        with pytest.raises(StoreError, match=rf"network filesystem \({kind}\)"):
            SqliteStore(tmp_path / "home" / "journal.db")
        assert not (tmp_path / "home" / "journal.db").exists()

    def test_this_very_directory_is_a_local_one(self, tmp_path: Path) -> None:
        place.check_place(tmp_path)

    def test_a_directory_of_somebody_else_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        with pytest.raises(StoreError, match="it is not ours"):
            SqliteStore(tmp_path / "journal.db")

    def test_a_directory_that_everybody_may_write_to_is_refused(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o1777)
        with pytest.raises(StoreError, match="can be written by others"):
            SqliteStore(tmp_path / "journal.db")


class FullDisk:
    """A disk on which a file of SQLite cannot grow any more, unless the reserve is given up."""

    def __init__(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.fill()
        give_up = reserve.DiskReserve.give_up

        def give_up_pages(kept: reserve.DiskReserve) -> bool:
            held = give_up(kept)
            if held and threading.current_thread().name.startswith("journal"):  # and not by the end of the store
                self.allow(2000)
            return held

        monkeypatch.setattr(reserve.DiskReserve, "give_up", give_up_pages)
        monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=self.free, f_frsize=1))

    def fill(self) -> None:
        self.free = 0
        self.allow(0)

    def allow(self, pages: int) -> None:
        def limit() -> None:
            count = self.store._db.execute("PRAGMA page_count").fetchone()[0]
            self.store._db.execute(f"PRAGMA max_page_count = {count + pages}").fetchone()

        self.store._writer.submit(limit).result() if pages == 0 else limit()

    def empty(self) -> None:
        self.free = 2 * (stores.RESERVED_BYTES + RESERVE_BYTES)
        self.store._writer.submit(lambda: self.store._db.execute("PRAGMA max_page_count = 1000000").fetchone()).result()


async def test_on_a_full_disk_nothing_is_accepted_status_and_cancel_go_on_and_it_recovers_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        running = await master.running(agent)
        waiting = [await master.submit(hold=True) for _ in range(50)]
        assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES
        disk = FullDisk(master.store, monkeypatch)
        code, words = await refused(master.submit())
        assert (code.name, words) == ("RESOURCE_EXHAUSTED", "the master's disk is full: no job is accepted for now")
        for job in waiting:
            await master.ask.Cancel(client_pb2.CancelRequest(job_id=job))
            await master.becomes(job, "CANCELLED")
        await master.ask.Cancel(client_pb2.CancelRequest(job_id=running))
        assert (await agent.receive("stop")).job_id == running
        assert not (tmp_path / "reserve").exists()
        disk.empty()
        assert await master.submit(hold=True)
        assert (tmp_path / "reserve").exists()
    async with a_master(tmp_path) as master:
        cancelled = [job for job in waiting if (await master.show(job)).end_time]
        assert cancelled == waiting


def test_without_a_reserve_a_full_disk_is_an_error_and_nothing_of_the_batch_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    with closing(SqliteStore(path)) as store:
        store.append([(1.0, e.CancelRequested(JobId("0")))]).result()
        FullDisk(store, monkeypatch)
        (tmp_path / "reserve").unlink()
        many = [(1.0, e.CancelRequested(JobId(str(number)))) for number in range(1000)]
        with pytest.raises(StoreError, match="full"):
            store.append(many).result()
        assert len(list(store.events())) == 1
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_vault_has_the_reserve_too(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "journal.db")) as store:
        store.append([(1.0, e.CancelRequested(JobId("0")))]).result()
        db = store.vault._db

        def full_once() -> None:
            count = db.execute("PRAGMA page_count").fetchone()[0]
            db.execute(f"PRAGMA max_page_count = {count}").fetchone()

        store._writer.submit(full_once).result()
        with pytest.raises(StoreError, match="full"):
            store.vault.put(EntryKind.ENVIRONMENT, {"1": "x" * 100_000}).result()
        assert not (tmp_path / "reserve").exists()
        assert store.vault.read(EntryKind.ENVIRONMENT) == {}


def test_the_reserve_is_taken_only_where_there_is_room_beside_it(tmp_path: Path) -> None:
    kept = reserve.DiskReserve(tmp_path / "reserve")
    kept.take(2**62)
    assert not kept.held
    kept.take(0)
    assert kept.held
    assert os.stat(tmp_path / "reserve").st_blocks * 512 >= RESERVE_BYTES
    assert (kept.give_up(), kept.give_up(), kept.held) == (True, False, False)
