"""Backups: taken beside a running master, read before they count, and put back so that nobody is taken for another."""

import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ebbtide_core import events as e
from ebbtide_core.model.types import JobId
from ebbtide_master.backup import backing_up, backups, restoring
from ebbtide_master.store.journal import StoreError, StoreInUseError
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_master.store.sqlite_journal import SqliteJournal
from ebbtide_master.store.vault import EntryKind
from ebbtide_protos.v1 import client_pb2

from tests.master.test_process import Process
from tests.master.world import RUNNING, a_master, make_status


async def jobs_in(home: Path, count: int) -> list[str]:
    """That many jobs more, submitted to a master of that home."""
    async with a_master(home) as master:
        return [await master.submit(hold=True) for _ in range(count)]


def spoil(path: Path) -> None:
    """Overwrite the middle of a file."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)


def die_after(moves: int, monkeypatch: pytest.MonkeyPatch, home: Path, backup: Path) -> None:
    """Restore a backup to that home, and die once so many files are at their places."""
    replace, left = Path.replace, [None] * moves

    def dying(path: Path, target: Path) -> Path:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dying)
        with pytest.raises(KeyboardInterrupt):
            restoring.restore(home, backup)


async def test_a_backup_beside_a_running_master_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        for _ in range(3):
            await master.submit(hold=True)
        backup, findings = backups.take(tmp_path)
        await master.submit(hold=True)
    assert (findings.jobs, findings.next_id, findings.damage) == (3, 4, ())
    assert backups.verified(backup.path)[1] == findings
    assert sorted(path.name for path in backup.path.iterdir()) == ["backup.json", "journal.db", "vault.db"]
    assert backup.path.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in backup.path.glob("*.db"))


async def test_a_check_reads_all_and_changes_nothing(tmp_path: Path) -> None:
    await jobs_in(tmp_path, 2)
    before = (tmp_path / "journal.db").read_bytes()
    assert backups.check(tmp_path).jobs == 2
    assert (tmp_path / "journal.db").read_bytes() == before
    with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        db.execute("UPDATE events SET body = '?' WHERE job = '2'")
        db.commit()
    assert [line.job for line in backups.check(tmp_path).damage] == ["2"]
    spoil(tmp_path / "journal.db")
    with pytest.raises(StoreError):
        backups.check(tmp_path)


async def test_only_so_many_backups_are_kept_and_the_newest_that_is_sound_is_found(tmp_path: Path) -> None:
    await jobs_in(tmp_path, 1)
    taken = []
    for number in range(4):
        backups.take(tmp_path, keep=3)[0].path.rename(path := tmp_path / "backups" / f"2026010{number}T000000Z")
        taken.append(path)
    backups.take(tmp_path, keep=3)
    left = [backup.path for backup in backups.backups(tmp_path)]
    assert left[1:] == taken[:1:-1]
    newest = left[0]
    assert backups.newest_verified(tmp_path).path == newest
    spoil(newest / "journal.db")
    with pytest.raises(StoreError, match="its files are not those that were made"):
        backups.verified(newest)
    assert backups.newest_verified(tmp_path).path == left[1]


async def test_what_cannot_be_folded_is_no_backup(tmp_path: Path) -> None:
    await jobs_in(tmp_path, 1)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        db.execute("INSERT INTO events VALUES (99, 2e9, 'NodeLost', '', '', '{\"node\": \"n9\", \"silent_s\": 1.0}')")
        db.commit()
    with pytest.raises(StoreError, match="does not follow"):
        backups.take(tmp_path)
    assert list(backups.backups(tmp_path)) == []
    assert list((tmp_path / "backups").iterdir()) == []


async def test_what_comes_to_books_with_which_no_master_starts_is_no_backup(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.running(await master.agent("n1", 1))
        other = await master.submit()
        [placed] = [line.event for line in master.store.events() if isinstance(line.event, e.AttemptPlaced)]
    store = SqliteStore(tmp_path / "journal.db")
    store.append([(store.last_time, replace(placed, job=JobId(other)))]).result()
    store.close()
    with pytest.raises(StoreError, match=f"sound books: job {other} gets GPUs of node n1 that are held"):
        backups.take(tmp_path)
    assert list(backups.backups(tmp_path)) == []


def test_the_next_backup_is_due_when_the_last_one_is_old_enough(tmp_path: Path) -> None:
    assert backing_up.due_in_s(tmp_path, 60.0, 1000.0) == 60.0
    SqliteStore(tmp_path / "journal.db").close()
    taken = backups.take(tmp_path)[0].taken
    assert backing_up.due_in_s(tmp_path, 60.0, taken + 45.0) == pytest.approx(15.0)
    assert backing_up.due_in_s(tmp_path, 60.0, taken + 100.0) == 0.0
    assert backing_up.due_in_s(tmp_path, 60.0, taken - 1e6) == 60.0  # whatever the clock did


def test_a_backup_on_a_schedule_is_a_process_of_its_own(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "journal.db").close()
    command = [sys.executable, "-m", "ebbtide_master.backup.backing_up", str(tmp_path), "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "backup=" in done.stderr) == (0, True)
    assert len(list(backups.backups(tmp_path))) == 1


async def test_what_a_backup_that_was_killed_has_left_goes_with_the_next_one(tmp_path: Path) -> None:
    await jobs_in(tmp_path, 1)
    program = """
import os, signal, sys
from pathlib import Path
from ebbtide_master.backup import backups
backups.check = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
backups.take(Path(sys.argv[1]))
"""
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    [left] = (tmp_path / "backups").iterdir()
    assert left.name.startswith(".draft-")
    made = backups.take(tmp_path)[0].path
    assert list((tmp_path / "backups").iterdir()) == [made]


@pytest.mark.parametrize("named", [0, 1])
async def test_a_backup_that_is_still_written_is_left_alone_by_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    await jobs_in(tmp_path, 1)
    check, made = backups.check, list[Path]()
    places: list[Path | None] = [None, None]
    places[named] = tmp_path / "backups" / "named"

    def check_beside_another(folder: Path) -> backups.JournalFindings:
        monkeypatch.setattr(backups, "check", check)
        made.append(backups.take(tmp_path, to=places[1])[0].path)
        return check(folder)

    monkeypatch.setattr(backups, "check", check_beside_another)
    made.append(backups.take(tmp_path, to=places[0])[0].path)
    assert sorted((tmp_path / "backups").iterdir()) == sorted(made)


@pytest.mark.parametrize("counted", [True, False])
async def test_a_backup_from_when_the_clock_was_ahead_is_not_the_newest_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: bool
) -> None:
    await jobs_in(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(backups, "time", SimpleNamespace(**{**vars(time), "time": lambda: 4e9}))
        ahead, _ = backups.take(tmp_path)
    if not counted:  # it is of an older version
        of_before = {key: value for key, value in ahead.said.items() if key != "number"}
        (ahead.path / "backup.json").write_text(json.dumps(of_before))
    await jobs_in(tmp_path, 1)
    newest, _ = backups.take(tmp_path, keep=2)
    assert [backup.path for backup in backups.backups(tmp_path)] == [newest.path, ahead.path]
    assert backups.advice(tmp_path).endswith(f" {newest.path}")
    assert backing_up.due_in_s(tmp_path, 60.0, newest.taken + 45.0) == pytest.approx(15.0)
    restoring.restore(tmp_path, ahead.path)
    restored, _ = backups.take(tmp_path, keep=1)
    assert [backup.path for backup in backups.backups(tmp_path)] == [restored.path]


class TestRestore:
    async def test_what_was_backed_up_is_there_again_and_ids_are_not_given_out_twice(self, tmp_path: Path) -> None:
        kept = await jobs_in(tmp_path, 2)
        backup, _ = backups.take(tmp_path)
        lost = await jobs_in(tmp_path, 3)
        done = restoring.restore(tmp_path, backup.path)
        assert done.skipped == len(lost)
        async with a_master(tmp_path) as master:
            listed = (await master.ask.ListJobs(client_pb2.ListJobsRequest())).jobs
            assert [job.job_id for job in listed] == kept
            assert await master.submit() == str(int(lost[-1]) + 1)
            assert master.store.restored is not None
            assert master.service.epoch > 1000
        assert done.replaced is not None
        assert backups.check(done.replaced).jobs == len(kept) + len(lost)

    async def test_what_runs_of_a_job_that_is_not_known_any_more_is_left_alone(self, tmp_path: Path) -> None:
        await jobs_in(tmp_path, 1)
        backup, _ = backups.take(tmp_path)
        async with a_master(tmp_path) as master:
            job = await master.running(await master.agent("n1"))
        restoring.restore(tmp_path, backup.path)
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1", attempts=[make_status(job, 1, RUNNING)])
            assert agent.heard == ["welcome"]

    async def test_without_a_journal_that_can_be_read_more_ids_and_epochs_are_skipped(self, tmp_path: Path) -> None:
        await jobs_in(tmp_path, 1)
        backup, found = backups.take(tmp_path)
        (tmp_path / "journal.db").write_bytes(b"noise" * 5000)
        done = restoring.restore(tmp_path, backup.path)
        assert (done.skipped, done.epoch) == (restoring.IDS_SKIPPED, found.epoch + restoring.EPOCHS_SKIPPED)
        assert await jobs_in(tmp_path, 1) == [str(restoring.IDS_SKIPPED + 2)]

    async def test_the_time_goes_on_from_the_last_line_although_an_earlier_one_was_far_ahead(
        self, tmp_path: Path
    ) -> None:
        await jobs_in(tmp_path, 2)
        with closing(sqlite3.connect(tmp_path / "journal.db")) as db, db:
            db.execute("UPDATE events SET time = 4e9 WHERE sequence = 1")
        restoring.restore(tmp_path, backups.take(tmp_path)[0].path)
        assert SqliteJournal(tmp_path / "journal.db").last_time < 4e9

    async def test_it_is_refused_while_a_master_runs(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            backup, _ = backups.take(tmp_path)
            with pytest.raises(StoreInUseError):
                restoring.restore(tmp_path, backup.path)
            await master.submit()

    async def test_a_backup_that_is_not_sound_is_refused_and_nothing_is_changed(self, tmp_path: Path) -> None:
        await jobs_in(tmp_path, 1)
        backup, _ = backups.take(tmp_path)
        spoil(backup.path / "journal.db")
        before = {path.name: path.read_bytes() for path in tmp_path.glob("*.db")}
        with pytest.raises(StoreError):
            restoring.restore(tmp_path, backup.path)
        assert {path.name: path.read_bytes() for path in tmp_path.glob("*.db")} == before

    def test_tokens_that_were_revoked_since_stay_so_and_what_jobs_need_comes_back(self, tmp_path: Path) -> None:
        with closing(SqliteStore(tmp_path / "journal.db")) as store:
            store.vault.put(EntryKind.TOKEN, {"old": "revoked since"}).result()
            store.vault.put(EntryKind.ENVIRONMENT, {"1": "needed again", "2": "changed"}).result()
        backup, _ = backups.take(tmp_path)
        with closing(SqliteStore(tmp_path / "journal.db")) as store:
            store.vault.put(EntryKind.TOKEN, {"old": None, "new": "made since"}).result()
            store.vault.put(EntryKind.ENVIRONMENT, {"1": None, "2": "newer"}).result()
        restoring.restore(tmp_path, backup.path)
        with closing(SqliteStore(tmp_path / "journal.db")) as store:
            assert store.vault.read(EntryKind.TOKEN) == {"new": "made since"}
            assert store.vault.read(EntryKind.ENVIRONMENT) == {"1": "needed again", "2": "newer"}

    @pytest.mark.parametrize("dies_after", [None, 0, 1])
    def test_over_another_cluster_its_vault_is_replaced_also_by_a_restore_that_is_done_again(
        self, tmp_path: Path, dies_after: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours, other = tmp_path / "ours", tmp_path / "other"
        for home, whose in ((ours, "ours"), (other, "another's")):
            home.mkdir()
            with closing(SqliteStore(home / "journal.db")) as store:
                store.vault.put(EntryKind.USER, {whose: "a user"}).result()
                store.vault.put(EntryKind.ENVIRONMENT, {"1": whose}).result()
        backup, _ = backups.take(ours)
        if dies_after is not None:
            die_after(dies_after, monkeypatch, other, backup.path)
        restoring.restore(other, backup.path)
        with closing(SqliteStore(other / "journal.db")) as store:
            assert store.vault.read(EntryKind.USER) == {"ours": "a user"}
            assert store.vault.read(EntryKind.ENVIRONMENT) == {"1": "ours"}

    @pytest.mark.parametrize("moves", [0, 1])
    async def test_a_restore_that_dies_on_its_way_keeps_masters_out_until_it_is_done_again(
        self, tmp_path: Path, moves: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await jobs_in(tmp_path, 1)
        backup, _ = backups.take(tmp_path)
        await jobs_in(tmp_path, 1)
        die_after(moves, monkeypatch, tmp_path, backup.path)
        with pytest.raises(StoreError, match="was not put back to the end"):
            SqliteStore(tmp_path / "journal.db")
        restoring.restore(tmp_path, backup.path)
        assert await jobs_in(tmp_path, 1) in (["3"], [str(restoring.IDS_SKIPPED + 2)])


class TestRefusals:
    @pytest.mark.parametrize("where", ["header", "pages"])
    async def test_a_damaged_journal_is_refused_with_the_newest_sound_backup_named_and_nothing_is_created(
        self, tmp_path: Path, where: str
    ) -> None:
        await jobs_in(tmp_path, 3)
        path = backups.take(tmp_path)[0].path
        journal = tmp_path / "journal.db"
        damaged = bytearray(journal.read_bytes())
        start, end = (0, 100) if where == "header" else (4096, len(damaged))
        damaged[start:end] = b"\xa5" * (end - start)
        journal.write_bytes(damaged)
        before = sorted(path.name for path in tmp_path.iterdir())
        code, said = Process(tmp_path).end()
        assert code in (1, 70)
        assert f"the newest backup that is sound: ebb master restore {path}" in said
        assert journal.read_bytes() == damaged
        assert {path.name for path in tmp_path.iterdir()} - set(before) <= {"journal.db-wal", "journal.db-shm"}

    async def test_a_journal_that_is_gone_or_empty_is_no_new_one_where_there_are_backups(self, tmp_path: Path) -> None:
        await jobs_in(tmp_path, 1)
        backups.take(tmp_path)
        for write in (lambda path: path.write_bytes(b""), lambda path: path.unlink()):
            write(tmp_path / "journal.db")
            with pytest.raises(StoreError, match="there are backups of it"):
                SqliteStore(tmp_path / "journal.db")
            assert not (tmp_path / "journal.db").exists() or (tmp_path / "journal.db").stat().st_size == 0

    async def test_the_newest_sound_backup_is_named(self, tmp_path: Path) -> None:
        await jobs_in(tmp_path, 1)
        assert backups.advice(tmp_path) == ""
        path = backups.take(tmp_path)[0].path
        assert backups.advice(tmp_path) == f"; the newest backup that is sound: ebb master restore {path}"

    def test_a_lock_that_somebody_holds_is_respected(self, tmp_path: Path) -> None:
        SqliteStore(tmp_path / "journal.db").close()
        backup, _ = backups.take(tmp_path)
        descriptor = os.open(tmp_path / "master.lock", os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(StoreInUseError, match="another master uses"):
            restoring.restore(tmp_path, backup.path)
        os.close(descriptor)

    def test_a_journal_of_another_kind_is_said_to_be_one(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
            db.execute("CREATE TABLE meta (key, value)")
            db.commit()
        with pytest.raises(StoreError, match="what it says of itself cannot be read"):
            SqliteJournal(tmp_path / "journal.db")


def test_a_backup_may_go_anywhere_but_over_another(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "home" / "journal.db")) as store:
        store.append([(1.0, e.CancelRequested(JobId("1")))]).result()
    made, _ = backups.take(tmp_path / "home", to=tmp_path / "safe" / "today")
    assert made.path == tmp_path / "safe" / "today"
    with pytest.raises(StoreError, match="is there already"):
        backups.take(tmp_path / "home", to=made.path)


async def test_backups_of_an_earlier_version_to_which_a_master_went_back_are_the_newest(tmp_path: Path) -> None:
    await jobs_in(tmp_path, 1)
    paths = []
    for day, counted in ((1, True), (2, True), (3, False), (4, False)):
        made, _ = backups.take(tmp_path)
        made.path.rename(path := tmp_path / "backups" / f"2026120{day}T000000Z")
        paths.append(path)
        if not counted:
            of_before = {key: value for key, value in made.said.items() if key != "number"}
            (path / "backup.json").write_text(json.dumps(of_before))
    assert [backup.path for backup in backups.backups(tmp_path)] == paths[::-1]
    newest, _ = backups.take(tmp_path, to=tmp_path / "backups" / "20261205T000000Z", keep=0)
    assert next(backups.backups(tmp_path)).path == newest.path
