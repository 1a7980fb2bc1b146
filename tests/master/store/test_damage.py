"""A line of the journal that cannot be read: its job is set aside, and everything else goes on as if it were whole."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.model.types import HeldBy, JobId, JobState
from ebbtide_core.policies.registry import create_policy
from ebbtide_master.store.journal import DamagedLineError, StoreError
from ebbtide_master.store.recovery import fold, recovered
from ebbtide_master.store.sqlite import MOST_DAMAGED, SqliteStore
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.master.world import FREED, RUNNING, a_master, make_status, refused


def damage(home: Path, kind: str, job: str = "", node: str = "", body: str = '{"') -> int:
    """Spoil the last line of that kind about that job; its number."""
    with closing(sqlite3.connect(home / "journal.db")) as db:
        where = "kind = ? AND job = ? AND node IN ('', ?)"
        (line,) = db.execute(f"SELECT max(sequence) FROM events WHERE {where}", (kind, job, node)).fetchone()
        assert line is not None
        db.execute("UPDATE events SET body = ? WHERE sequence = ?", (body, line))
        db.commit()
    return int(line)


async def two_jobs(home: Path) -> None:
    """Job 1 runs, job 2 has completed, job 3 waits."""
    async with a_master(home) as master:
        agent = await master.agent("n1", gpus=1)
        done = await master.running(agent)
        await agent.report(done, 1, FREED)
        await master.becomes(done, "COMPLETED")
        await master.running(agent)
        await master.submit()


@pytest.mark.parametrize("kind", ["AttemptPlaced", "AttemptStarted"])
async def test_a_job_with_a_line_that_cannot_be_read_is_held_and_the_others_go_on(tmp_path: Path, kind: str) -> None:
    await two_jobs(tmp_path)
    line = damage(tmp_path, kind, "2")
    async with a_master(tmp_path) as master:
        job = await master.show("2")
        assert (job.state, job.held_by) == (job_pb2.JOB_STATE_PENDING, "system")
        assert job.reason.startswith(f"line {line} of the journal, {kind}, is damaged")
        agent = await master.agent("n1", gpus=2)
        assert (await agent.receive("launch")).job_id == "3"
        assert (await master.show("1")).state == job_pb2.JOB_STATE_COMPLETED
        assert await master.submit(hold=True) == "4"


async def test_a_job_that_was_set_aside_can_be_cancelled_and_nothing_else(tmp_path: Path) -> None:
    await two_jobs(tmp_path)
    damage(tmp_path, "AttemptStarted", "2")
    for _ in range(2):  # what is set aside stays so
        async with a_master(tmp_path) as master:
            code, words = await refused(master.ask.Release(client_pb2.JobRequest(job_id="2")))
            assert code.name == "FAILED_PRECONDITION"
            assert "cancel it, and submit it again" in words
    async with a_master(tmp_path) as master:
        await master.ask.Cancel(client_pb2.CancelRequest(job_id="2"))
        await master.becomes("2", "CANCELLED")
    async with a_master(tmp_path) as master:
        assert (await master.show("2")).state == job_pb2.JOB_STATE_CANCELLED


async def test_what_runs_of_a_job_that_was_set_aside_is_left_alone(tmp_path: Path) -> None:
    await two_jobs(tmp_path)
    damage(tmp_path, "AttemptPlaced", "2")
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=2, attempts=[make_status("2", 1, RUNNING)])
        await agent.receive("launch")
        assert agent.heard == ["welcome", "launch"]
        assert (await master.show("2")).held_by == "system"


async def test_an_id_is_not_given_out_again_even_if_its_submission_cannot_be_read(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        for _ in range(3):
            await master.submit(hold=True)
    damage(tmp_path, "JobSubmitted", "2")
    async with a_master(tmp_path) as master:
        listed = (await master.ask.ListJobs(client_pb2.ListJobsRequest(all=True))).jobs
        assert [job.job_id for job in listed] == ["1", "3"]
        assert await master.submit() == "4"


async def test_who_waits_for_a_job_that_is_lost_is_held_and_not_cancelled(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first = await master.submit(hold=True)
        after = job_pb2.Dependency(job_id=first, kind=job_pb2.AFTER_KIND_OK)
        second = await master.submit(after=[after])
    damage(tmp_path, "JobSubmitted", first)
    async with a_master(tmp_path) as master:
        await master.agent("n1")
        job = await master.show(second)
        assert (job.state, job.held_by) == (job_pb2.JOB_STATE_PENDING, "system")
        assert f"it was to wait for job {first}: line" in job.reason


async def test_a_damaged_line_about_a_node_is_left_out_if_nothing_follows_from_it(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=1)
        job = await master.running(agent)
        await master.ask.DrainNode(client_pb2.DrainNodeRequest(node="n1"))
    damage(tmp_path, "NodeDrained", node="n1")
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=1, attempts=[make_status(job, 1, RUNNING)])
        assert (await master.show(job)).state == job_pb2.JOB_STATE_RUNNING
        assert agent.heard == ["welcome"]


async def test_a_line_that_others_follow_from_stops_the_start(tmp_path: Path) -> None:
    await two_jobs(tmp_path)
    damage(tmp_path, "NodeRegistered", node="n1")
    with pytest.raises(StoreError, match="does not follow from those before it"):
        await a_master(tmp_path).__aenter__()


def test_a_line_of_a_newer_version_is_no_damage(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "journal.db")) as store:
        store.append([(1.0, e.MasterStarted(1))]).result()
        with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
            db.execute("INSERT INTO events VALUES (2, 1.0, 'TeaBrewed', '7', '', '{}')")
            db.commit()
        with pytest.raises(StoreError, match="newer version"):
            recovered(store, fresh(store))
        assert store.damage == {}


def test_a_journal_that_is_damaged_all_over_is_refused(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "journal.db")) as store:
        count = MOST_DAMAGED + 1
        store.append([(1.0, e.CancelRequested(JobId(str(number)))) for number in range(count)]).result()
        with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
            db.execute("UPDATE events SET body = 'x'")
            db.commit()
        with pytest.raises(StoreError, match=f"{count} lines of the journal are damaged, line 1 of"):
            recovered(store, fresh(store))


def test_what_was_set_aside_is_known_to_the_next_one_and_missing_for_every_reader(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with closing(SqliteStore(path)) as store:
        store.append([(1.0, e.CancelRequested(JobId(job))) for job in ("1", "2", "3")]).result()
        with closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE events SET body = '[]' WHERE sequence = 2")
            db.commit()
        with pytest.raises(DamagedLineError):
            list(store.events())
        store.set_damage_aside()
        assert [line.sequence for line in store.events()] == [1, 3]
    with closing(SqliteStore(path)) as store:
        assert [(line.sequence, line.job) for line in store.damage.values()] == [(2, "2")]
        assert [line.sequence for line in store.events()] == [1, 3]
        cluster = recovered(store, fresh(store))
        assert cluster.state.unreadable == {}  # there never was a submission of it


def fresh(store: SqliteStore) -> Callable[[], Cluster]:
    def attempt() -> Cluster:
        cluster = Cluster(create_policy("fitgpp", {}))
        fold(cluster, store)
        return cluster

    return attempt


def test_a_task_of_an_array_that_is_set_aside_leaves_the_others(tmp_path: Path) -> None:
    golden = (Path(__file__).parents[1] / "golden" / "journal-1-arrays.sql").read_text()
    states = []
    for name in ("whole", "damaged"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "journal.db"
        with closing(sqlite3.connect(path)) as db:
            db.executescript(golden)
            if name == "damaged":
                db.execute("UPDATE events SET body = '' WHERE kind = 'JobSubmitted' AND job = '100.1'")
            db.commit()
        with closing(SqliteStore(path)) as store:
            states.append(recovered(store, fresh(store)).state)
    whole, damaged = states
    assert whole.jobs.keys() - damaged.jobs.keys() == {"100.1"}
    assert damaged.gates.next_id(damaged.submissions) == whole.gates.next_id(whole.submissions)
    assert damaged.jobs[JobId("100.0")].state is JobState.FAILED
    assert all(job.held_by is not HeldBy.SYSTEM for job in damaged.jobs.values())
