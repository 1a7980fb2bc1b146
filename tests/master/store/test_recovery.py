"""A master that starts again: it knows what it knew, asks before it places, and repeats what was perhaps not heard."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ebbtide_core.events import ClaimDropped
from ebbtide_core.model import limits
from ebbtide_master import clock
from ebbtide_master.backup import backups
from ebbtide_master.store.journal import StoreError
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.core.admission.test_gates import outgrown
from tests.master.world import FREED, RUNNING, STEPPED_ASIDE, a_master, make_status, refused


async def test_a_master_that_starts_again_shows_every_job_as_it_was(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        running = await master.running(agent, name="a", env={"K": "v"})
        over = await master.running(agent)
        await agent.report(over, 1, FREED)
        await master.becomes(over, "COMPLETED")
        held = await master.submit(hold=True)
        before = [await master.show(job) for job in (running, over, held)]
    async with a_master(tmp_path) as master:
        after = [await master.show(job) for job in (running, over, held)]
        for old, new in zip(before, after, strict=True):
            for changing in ("running_s", "waiting_s"):
                assert getattr(new, changing) >= getattr(old, changing)
                old.ClearField(changing)  # type: ignore[arg-type]
                new.ClearField(changing)  # type: ignore[arg-type]
            assert old == new


async def test_each_start_has_a_higher_epoch(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        async with a_master(tmp_path) as master:
            assert (await master.agent("n1")).heard == ["welcome"]
            assert master.service.epoch == epoch


async def test_nothing_is_placed_before_the_nodes_that_had_attempts_were_heard(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.agent("n2", gpus=0)
        agent = await master.agent("n1", gpus=1)
        job = await master.running(agent)
        waiting = await master.submit()
    async with a_master(tmp_path) as master:
        info = await master.ask.ShowCluster(client_pb2.ShowClusterRequest())
        assert info.recovering
        other = await master.agent("n2", gpus=1)
        assert (await master.show(waiting)).state == job_pb2.JOB_STATE_PENDING
        assert other.heard == ["welcome"]
        await master.agent("n1", gpus=1, attempts=[make_status(job, 1, RUNNING)])
        assert (await other.receive("launch")).job_id == waiting
        assert not (await master.ask.ShowCluster(client_pb2.ShowClusterRequest())).recovering
        assert len((await master.show(job)).attempts) == 1


async def test_a_node_that_does_not_come_back_in_time_is_lost_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=1)
        job = await master.running(agent)
        waiting = await master.submit()
    monkeypatch.setattr(limits, "RECOVERY_GRACE_S", 0.1)
    async with a_master(tmp_path) as master:
        other = await master.agent("n2", gpus=1)
        assert (await other.receive("launch")).job_id == waiting
        lost = await master.becomes(job, "UNREACHABLE")
        assert len(lost.attempts) == 1


async def test_an_attempt_that_ended_while_the_master_was_away_is_told_of_later(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        job = await master.running(await master.agent("n1"))
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", attempts=[make_status(job, 1, FREED)])
        assert (await agent.receive("forget")).job_id == job
        assert (await master.becomes(job, "COMPLETED")).exit_code == 0


async def test_an_order_that_was_recorded_but_not_sent_is_sent_by_the_next_master(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        unheard = await master.submit()
        agent.vanish()
        await master.until_node("n1", "down")
        await master.ask.Suspend(client_pb2.JobRequest(job_id=job))
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", attempts=[make_status(job, 1, RUNNING)])
        assert (await agent.receive("stop")).job_id == job
        assert (await agent.receive("launch")).job_id == unheard
        await agent.report(job, 1, FREED, exit=STEPPED_ASIDE)
        assert (await master.becomes(job, "SUSPENDED")).held_by == "user"


async def test_a_node_that_was_rebooted_meanwhile_has_lost_its_attempts_and_they_run_again(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        job = await master.running(await master.agent("n1"))
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", boot_id="boot-2")
        launch = await agent.receive("launch")
        assert (launch.job_id, launch.attempt) == (job, 2)  # and the first was not ordered again
        assert "was not recorded" in (await master.show(job)).attempts[0].outcome


async def test_an_attempt_that_this_master_does_not_know_is_left_alone(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        known = [make_status("17", 4, RUNNING), make_status("18", 1, FREED)]
        agent = await master.agent("n1", cluster_id=master.store.cluster_id, attempts=known)
        job = await master.submit()
        assert (await agent.receive("launch")).job_id == job
        assert agent.heard == ["welcome", "launch"]


async def test_what_was_quiesced_runs_again_after_a_start(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        async for _ in master.ask.Quiesce(client_pb2.QuiesceRequest()):
            pass
        job = await master.submit()
        agent = await master.agent("n1")
        assert (await master.show(job)).state == job_pb2.JOB_STATE_PENDING
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        assert (await agent.receive("launch")).job_id == job
        assert (await master.kinds())[-4:-2] == ["MasterStarted", "Unquiesced"]


async def test_times_never_go_back_even_if_the_clock_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_master(tmp_path) as master:
        first = (await master.show(await master.submit())).submit_time
    monkeypatch.setattr(clock, "time", SimpleNamespace(time=lambda: 1000.0, monotonic=time.monotonic))
    async with a_master(tmp_path) as master:
        assert (await master.show(await master.submit())).submit_time > first


async def test_a_journal_without_the_word_that_a_claim_was_given_up_is_one_to_start_with(tmp_path: Path) -> None:
    """Older versions gave a claim up and did not record it when less of a quota was left to its job."""
    lab = outgrown()
    store = SqliteStore(tmp_path / "journal.db")
    store.append([(time, event) for time, event in lab.journal if not isinstance(event, ClaimDropped)]).result()
    store.close()
    async with a_master(tmp_path, settings=lab.cluster.state.settings) as master:
        assert (await master.show("2")).state == job_pb2.JOB_STATE_SUSPENDING
        assert backups.take(tmp_path)[1].jobs == 3


async def test_a_journal_that_fails_while_it_serves_stops_the_master_and_acknowledges_nothing(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        kept = await master.submit()
        master.store._writer.submit(master.store._db.execute, "PRAGMA query_only = ON").result()
        code, words = await refused(master.submit())
        assert (code.name, words) == ("UNAVAILABLE", "the master is stopping")
        with pytest.raises(StoreError):
            await asyncio.wait_for(master.service.consumer, 30)
    async with a_master(tmp_path) as master:
        jobs = (await master.ask.ListJobs(client_pb2.ListJobsRequest(all=True))).jobs
        assert [job.job_id for job in jobs] == [kept]


async def test_a_journal_that_does_not_even_take_the_start_stops_the_master(tmp_path: Path) -> None:
    class Broken(SqliteStore):
        def next_epoch(self) -> int:
            epoch = super().next_epoch()
            self._writer.submit(self._db.execute, "PRAGMA query_only = ON").result()
            return epoch

    with pytest.raises(StoreError, match="readonly"):
        await asyncio.wait_for(a_master(tmp_path, store=Broken(tmp_path / "journal.db")).__aenter__(), 30)
