"""Readings of utilisation become facts about jobs."""

import asyncio
from dataclasses import replace
from pathlib import Path

from ebbtide_core import events as e
from ebbtide_core.model.settings import IdleAction, IdleSettings, Settings
from ebbtide_core.model.types import GpuId, NodeId
from ebbtide_master.clock import Clock
from ebbtide_master.nodes.idleness import Idleness
from ebbtide_master.nodes.readings import NodeReadings
from ebbtide_protos.v1 import agent_pb2, client_pb2

from tests.core.lab import Lab
from tests.master.world import DEADLINE_S, RUNNING, Agent, Master, a_master, make_status

AT_ONCE = Settings(idle=IdleSettings(after_s=0.0, action=IdleAction.SUSPEND, warning_s=0.0))


async def show_reading(agent: Agent, utilisation: float | None) -> None:
    readings = [agent_pb2.GpuReading(uuid=f"n1-{i}", healthy=True, utilisation=utilisation) for i in range(2)]
    await agent.send(heartbeat=agent_pb2.Heartbeat(gpus=readings))


async def idle_events(master: Master) -> list[str]:
    return [kind for kind in await master.kinds() if kind in ("JobIdle", "JobBusy")]


async def test_a_job_that_shows_no_use_is_suspended_and_says_why(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        master.cluster.state.settings = AT_ONCE
        agent = await master.agent()
        job = await master.running(agent, 2)
        await show_reading(agent, None)
        await show_reading(agent, 0.5)
        await show_reading(agent, 0.01)
        assert (await agent.receive("stop")).job_id == job
        assert "; 'ebb resume 1' when it is to go on" in (await master.show(job)).reason
        assert await idle_events(master) == ["JobIdle"]


async def until_idle(master: Master, job: str, wanted: bool) -> client_pb2.Job:
    """The job once it is idle, or is no longer."""
    async with asyncio.timeout(DEADLINE_S):
        async for shown in master.ask.WatchJobs(client_pb2.WatchJobsRequest(job_ids=[job])):
            if shown.HasField("idle_since") is wanted:
                return shown  # type: ignore[no-any-return]
    raise AssertionError("the job ended")


async def test_a_job_that_works_again_is_not_idle_any_more_also_for_the_next_master(tmp_path: Path) -> None:
    notify = replace(AT_ONCE, idle=replace(AT_ONCE.idle, action=IdleAction.NOTIFY))
    async with a_master(tmp_path) as master:
        master.cluster.state.settings = notify
        agent = await master.agent()
        job = await master.running(agent)
        await show_reading(agent, 0.0)
        assert (await until_idle(master, job, True)).reason == "running, but idle on 1 GPU"
    async with a_master(tmp_path) as master:
        master.cluster.state.settings = notify
        agent = await master.agent("n1", attempts=[make_status(job, 1, RUNNING)])
        await show_reading(agent, 0.0)
        assert (await until_idle(master, job, True)).idle_since
        await show_reading(agent, 0.9)
        assert (await until_idle(master, job, False)).reason == "running"
        assert await idle_events(master) == ["JobIdle", "JobBusy"]


class SetClock(Clock):
    """Shows the time to which it is set."""

    def __init__(self, shown: float) -> None:
        self.shown = shown

    def now(self) -> float:
        return self.shown


def test_after_a_clock_was_set_back_a_job_on_a_quiet_gpu_is_idle_as_soon_as_ever() -> None:
    lab = Lab(gpus=1)
    lab.running(1)
    lab.cluster.state.settings = Settings(idle=IdleSettings(after_s=10.0, action=IdleAction.NOTIFY))
    node, read = lab.cluster.state.nodes[NodeId("a")], frozenset({GpuId("a0")})
    readings = NodeReadings(agent_pb2.Hello(gpus=[agent_pb2.GpuInfo(uuid="a0", healthy=True)]))
    readings.take(agent_pb2.Heartbeat(gpus=[agent_pb2.GpuReading(uuid="a0", healthy=True, utilisation=0.0)]))
    clock = SetClock(lab.now + 3600.0)
    idleness = Idleness(clock)
    idleness.take(node.id, readings)
    for clock.shown in (lab.now, lab.now + 10.0):
        idleness.take(node.id, readings)
    [found] = idleness.facts(lab.cluster, node, read)
    assert isinstance(found, e.JobIdle)
    assert found.since == lab.now
