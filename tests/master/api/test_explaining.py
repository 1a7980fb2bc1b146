"""`ebb explain` looks ahead on a copy: when a job starts, and what would follow if it were another."""

import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_core.model.settings import PoolSettings, Settings
from ebbtide_master.api import explaining
from ebbtide_protos.v1 import agent_pb2, client_pb2

from tests.master.world import FREED, Master, a_master, refused, share, wish


def explain(master: Master, job: str, **what_if: Any) -> Any:
    return master.ask.Explain(client_pb2.ExplainRequest(job_id=job, **what_if))


async def test_what_if_tells_when_it_would_start_and_changes_nothing(tmp_path: Path) -> None:
    async with a_master(tmp_path, "priority") as master:
        running = await master.running(await master.agent("n1", 2), gpus=2, time_limit_s=3600.0, grace_s=20.0)
        waiting = await master.submit(gpus=1)
        before = time.time()
        told = await explain(master, waiting, priority=10)
        begun = (await master.show(running)).start_time
        assert told.forecast.start_at == pytest.approx(begun + 3600, abs=5)
        assert before + 15 <= told.what_if.start_at <= time.time() + 25
        assert (list(told.forecast.after), list(told.forecast.preempts)) == ([running], [])
        assert (list(told.what_if.preempts), list(told.what_if.nodes)) == ([running], ["n1"])
        assert (await master.show(waiting)).spec.priority == 42
        assert not (await explain(master, waiting)).HasField("what_if")


async def test_a_job_that_nothing_is_known_of_has_no_known_start(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        running = await master.running(await master.agent("n1", 2), gpus=2)
        told = await explain(master, await master.submit(gpus=1), gpus_min=share(2))
        assert told.forecast.basis == f"not known: no estimate says when job {running} ends"
        assert told.what_if.basis == told.forecast.basis


async def test_what_could_not_be_wished_for_is_refused(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        running = await master.running(await master.agent("n1", 2), gpus=2)
        waiting = await master.submit(gpus=1)
        assert await refused(explain(master, running, priority=1)) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            f"job {running} is RUNNING: --what-if is about when a waiting job starts",
        )
        assert (await refused(explain(master, waiting, priority=100)))[1].startswith("--priority: 100 is not between")
        assert (await refused(explain(master, waiting, gpus_min=share(3))))[1].startswith(
            "--gpus: 3 is more than the 2"
        )


async def test_too_long_a_queue_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "MOST_JOBS", 1)
    async with a_master(tmp_path) as master:
        await master.running(await master.agent("n1", 2), gpus=2)
        told = await explain(master, await master.submit(gpus=1))
        assert told.forecast.basis == "not foreseen: 2 unfinished jobs are over the limit of 1"


async def test_the_story_says_for_what_a_job_waited(tmp_path: Path) -> None:
    async with a_master(tmp_path, "fifo") as master:
        agent = await master.agent("n1", 2)
        first, second, third = await master.running(agent, gpus=2), await master.submit(2), await master.submit(2)
        await wish(master, "Cancel", third)
        await agent.report(first, 1, FREED, exit=agent_pb2.ExitRecord(ended_at=1001.0))
        await agent.receive("launch")
        story = (await master.ask.ShowStory(client_pb2.JobRequest(job_id=second))).events
        assert story[-1].text == "attempt 1 placed on 2 GPUs of node n1 (until then: waiting for 2 GPUs)"
        story = (await master.ask.ShowStory(client_pb2.JobRequest(job_id=third))).events
        assert story[-1].text == "user asked to cancel it (until then: waiting for its turn in the queue)"


async def test_another_pool_may_have_room(tmp_path: Path) -> None:
    settings = Settings(pools={"default": PoolSettings(), "other": PoolSettings(policy="fifo")})
    async with a_master(tmp_path, settings=settings) as master:
        await master.running(await master.agent("n1", 2), gpus=2)
        await master.agent("n2", 2, pool="other")
        waiting = await master.submit(gpus=1)
        told = await explain(master, waiting, pool="other")
        assert (told.forecast.HasField("start_at"), told.what_if.basis, list(told.what_if.nodes)) == (
            False,
            "there is room",
            ["n2"],
        )
        assert (await refused(explain(master, waiting, pool="third")))[0] is grpc.StatusCode.INVALID_ARGUMENT
