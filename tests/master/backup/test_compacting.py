"""A journal that is compacted: what it forgets, what it keeps, and that whoever asks is told."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from ebbtide_core.lifecycle import forgetting
from ebbtide_master.backup import backups, compacting
from ebbtide_master.store.journal import StoreError, StoreInUseError
from ebbtide_master.store.sqlite_journal import SqliteJournal
from ebbtide_protos.v1 import client_pb2, usage_pb2

from tests.master.store.test_damage import damage
from tests.master.world import FREED, RUNNING, a_master, make_status, refused


async def some_jobs(home: Path) -> None:
    """Jobs 1 and 2 have completed, job 3 runs, job 4 waits."""
    async with a_master(home) as master:
        agent = await master.agent("n1", gpus=1)
        for _ in range(2):
            job = await master.running(agent, name="train")
            await agent.report(job, 1, FREED)
            await master.becomes(job, "COMPLETED")
        await master.running(agent, name="train")
        await master.submit()


async def test_who_ended_long_ago_is_forgotten_and_the_others_go_on(tmp_path: Path) -> None:
    await some_jobs(tmp_path)
    before = backups.check(tmp_path)
    done = compacting.compact(tmp_path, 0.0)
    assert (done.forgotten, done.backup is not None) == (2, True)
    after = backups.check(tmp_path)
    assert (after.jobs, after.next_id, after.cluster_id) == (2, before.next_id, before.cluster_id)
    assert after.lines == before.lines - done.lines + 1
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=1, attempts=[make_status("3", 1, RUNNING)])
        await agent.report("3", 1, FREED)
        assert (await agent.receive("launch")).job_id == "4"
        assert await master.submit(hold=True) == "5"


async def test_whoever_asks_is_told_that_something_was_forgotten(tmp_path: Path) -> None:
    await some_jobs(tmp_path)
    done = compacting.compact(tmp_path, 0.0)
    async with a_master(tmp_path) as master:
        code, words = await refused(master.ask.ShowJob(client_pb2.JobRequest(job_id="1")))
        assert (code.name, "is not known any more" in words) == ("NOT_FOUND", True)
        _, words = await refused(master.ask.ShowJob(client_pb2.JobRequest(job_id="17")))
        assert words == "job 17 does not exist"
        kinds = await master.kinds()
        assert kinds.count("JobsForgotten") == kinds.count("RunForgotten") == 2
        request = usage_pb2.UsageRequest(edges=[0.0, 4e9])
        replies = [reply async for reply in master.ask.Usage(request)]
        assert replies[-1].known_since == done.before
        assert not replies[-1].problems


async def test_the_time_goes_on_from_the_last_line_although_an_earlier_one_was_far_ahead(tmp_path: Path) -> None:
    await some_jobs(tmp_path)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as db, db:
        db.execute("UPDATE events SET time = 4e9 WHERE sequence = 1")
    last = SqliteJournal(tmp_path / "journal.db")
    assert compacting.compact(tmp_path, 0.0).forgotten == 2
    after = SqliteJournal(tmp_path / "journal.db")
    assert (after.last_sequence, after.last_time) == (last.last_sequence + 1, last.last_time)
    assert after.last_time < 4e9


async def test_who_ended_lately_is_kept_and_nothing_is_touched(tmp_path: Path) -> None:
    await some_jobs(tmp_path)
    before = backups.check(tmp_path)
    done = compacting.compact(tmp_path, 3600.0)
    assert (done.forgotten, done.lines, done.backup) == (0, 0, None)
    assert backups.check(tmp_path) == before


async def test_a_result_that_is_not_the_same_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await some_jobs(tmp_path)
    before = backups.check(tmp_path)
    monkeypatch.setattr(forgetting, "_run", lambda job: None)
    with pytest.raises(StoreError, match=r"would amount to something else \(runs\)"):
        compacting.compact(tmp_path, 0.0)
    assert backups.check(tmp_path) == before


async def test_a_damaged_journal_is_not_compacted(tmp_path: Path) -> None:
    await some_jobs(tmp_path)
    damage(tmp_path, "AttemptStarted", "1")
    with pytest.raises(StoreError, match="damaged"):
        compacting.compact(tmp_path, 0.0)


async def test_it_is_refused_while_a_master_runs(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        with pytest.raises(StoreInUseError):
            compacting.compact(tmp_path, 0.0)
        await master.submit()
