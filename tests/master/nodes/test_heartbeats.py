"""Heartbeats that leave out what has not changed mean the same as complete ones."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from ebbtide_core.model import limits
from ebbtide_core.model.settings import IdleAction, IdleSettings, Settings
from ebbtide_core.model.types import GpuId
from ebbtide_master.nodes import agents, heartbeats
from ebbtide_master.nodes.agents import NODE_SILENCE_S
from ebbtide_master.nodes.heartbeats import interval_s
from ebbtide_master.nodes.readings import NodeReadings
from ebbtide_protos.v1 import agent_pb2

from tests.master.world import DEADLINE_S, EXITED, FREED, GIB, Agent, Master, a_master, make_hello

NOTIFY = Settings(idle=IdleSettings(after_s=0.0, action=IdleAction.NOTIFY))


def reading(gpu: int, **fields: Any) -> agent_pb2.GpuReading:
    return agent_pb2.GpuReading(uuid=f"n1-{gpu}", **({"healthy": True} | fields))


async def beat(agent: Agent, *readings: agent_pb2.GpuReading, number: int = 0, delta: bool = True) -> None:
    await agent.send(heartbeat=agent_pb2.Heartbeat(gpus=readings, delta=delta, beat=number))


async def until_event(master: Master, kind: str, count: int = 1) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await master.kinds()).count(kind) < count:
            await asyncio.sleep(0.005)


async def test_every_heartbeat_is_acknowledged_also_one_that_says_nothing_new(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        await beat(agent, reading(0), reading(1), number=1, delta=False)
        for number in (2, 3):
            await beat(agent, number=number)
        assert [(await agent.receive("heard")).beat for _ in range(3)] == [1, 2, 3]


async def test_a_master_says_that_it_takes_deltas(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        assert (await master.connect(make_hello("n1")).register()).deltas


async def test_what_is_shown_of_a_gpu_that_is_left_out_is_its_last_reading(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        await beat(agent, reading(0, utilisation=0.25), reading(1, utilisation=0.5), delta=False)
        await beat(agent, reading(1, utilisation=0.75), number=2)
        await agent.receive("heard")
        shown = (await master.until_node("n1", "up")).gpus
        assert [gpu.reading.utilisation for gpu in shown] == [0.25, 0.75]


async def test_a_job_is_idle_if_the_gpus_that_are_left_out_were_unused_before(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        master.cluster.state.settings = NOTIFY
        agent = await master.agent("n1")
        await master.running(agent, 2)
        await beat(agent, reading(0, utilisation=0.0), reading(1, utilisation=0.9), delta=False)
        await beat(agent)
        await beat(agent, reading(1, utilisation=0.0))
        await until_event(master, "JobIdle")
        await beat(agent)
        await beat(agent, reading(0, utilisation=0.9))
        await until_event(master, "JobBusy")
        assert (await master.kinds()).count("JobIdle") == 1


async def test_a_job_becomes_idle_by_heartbeats_that_say_nothing_new(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        master.cluster.state.settings = Settings(idle=IdleSettings(after_s=0.2, action=IdleAction.NOTIFY))
        agent = await master.agent("n1")
        await master.running(agent, 2)
        await beat(agent, reading(0, utilisation=0.0), reading(1, utilisation=0.0), delta=False)
        async with asyncio.timeout(DEADLINE_S):
            while "JobIdle" not in await master.kinds():
                await beat(agent)
                await asyncio.sleep(0.01)


async def test_a_process_without_an_owner_is_foreign_once_a_second_heartbeat_has_not_said_that_it_left(
    tmp_path: Path,
) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        await beat(agent, reading(0, processes=[agent_pb2.GpuProcess(pid=7)]), reading(1), number=1, delta=False)
        await agent.receive("heard")
        assert "ForeignUseChanged" not in await master.kinds()
        await beat(agent)
        await until_event(master, "ForeignUseChanged")


async def test_a_quarantined_gpu_is_released_by_a_heartbeat_that_leaves_it_out(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        left = [agent_pb2.GpuProcess(pid=7, mem_bytes=GIB, job_id=job, attempt=1)]
        await beat(agent, reading(0, mem_used_bytes=GIB, processes=left), reading(1), delta=False)
        await agent.report(job, 1, EXITED)
        await agent.report(job, 1, FREED, dirty_gpus=["n1-0"])
        await beat(agent, number=1)
        await agent.receive("heard")
        assert master.cluster.state.nodes["n1"].quarantine  # type: ignore[index]
        await beat(agent, reading(0, mem_used_bytes=0), number=2)
        await agent.receive("heard")
        assert not master.cluster.state.nodes["n1"].quarantine  # type: ignore[index]


async def test_a_quarantine_that_comes_after_a_clean_reading_ends_with_a_heartbeat_that_leaves_the_gpu_out(
    tmp_path: Path,
) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        await beat(agent, reading(0, mem_used_bytes=0), reading(1), delta=False)
        await agent.report(job, 1, EXITED)
        await agent.report(job, 1, FREED, dirty_gpus=["n1-0"])
        await beat(agent, number=1)
        await agent.receive("heard")
        assert not master.cluster.state.nodes["n1"].quarantine  # type: ignore[index]


def test_processes_that_were_seen_are_said_once_and_one_that_nobody_owns_once_it_is_seen_again() -> None:
    readings, said = NodeReadings(make_hello("n1", gpus=1)), list[list[int]]()
    owned, unknown = agent_pb2.GpuProcess(pid=1, user="ann"), agent_pb2.GpuProcess(pid=2)
    without, with_both = reading(0, processes=[owned]), reading(0, processes=[owned, unknown])
    for seen in (without, without, with_both, None, with_both, with_both, without):
        readings.take(agent_pb2.Heartbeat(gpus=[] if seen is None else [seen]))
        said.append([process.pid for process in readings.processes.get(GpuId("n1-0"), [])])
    assert said == [[1], [], [1], [], [1, 2], [], [1]]


@pytest.mark.parametrize("seed", range(20))
def test_deltas_leave_behind_what_complete_heartbeats_do(seed: int) -> None:
    """Each heartbeat either has all readings, or only those that differ, in any mixture."""
    dice, hello = random.Random(seed), make_hello("n1", gpus=3)
    complete, mixed = NodeReadings(hello), NodeReadings(hello)
    known: dict[int, agent_pb2.GpuReading] = {}
    found: tuple[list[Any], list[Any]] = ([], [])
    foreign: list[dict[GpuId, list[int]]] = [{}, {}]
    for _ in range(200):
        there = {gpu: known.get(gpu, reading(gpu)) for gpu in range(3) if dice.random() > 0.05}
        for gpu in [gpu for gpu in there if dice.random() < 0.3]:
            pids = [agent_pb2.GpuProcess(pid=pid, user=dice.choice(["", "ann"])) for pid in range(dice.randrange(3))]
            there[gpu] = reading(gpu, healthy=dice.random() < 0.8, processes=pids, utilisation=dice.random())
        differ = [each for gpu, each in there.items() if known.get(gpu) != each]
        as_delta = there.keys() == known.keys() and dice.random() < 0.8
        complete.take(agent_pb2.Heartbeat(gpus=there.values()))
        mixed.take(agent_pb2.Heartbeat(gpus=differ if as_delta else there.values(), delta=as_delta))
        known = there
        for number, readings in enumerate((complete, mixed)):
            found[number].append((dict(readings.last), readings.read, readings.health_changed))
            # What is not said anew of a GPU is what was said before.
            foreign[number] |= {gpu: [each.pid for each in there] for gpu, there in readings.processes.items()}
        assert found[0] == found[1], seed
        assert foreign[0] == foreign[1], seed


def test_heartbeats_come_less_often_where_there_are_thousands_of_nodes_but_four_times_before_one_counts_as_lost() -> (
    None
):
    assert [interval_s(connected) for connected in (1, 800, 1600, limits.MAX_AGENTS)] == [2.0, 2.0, 4.0, 5.0]
    assert 4 * interval_s(limits.MAX_AGENTS) <= NODE_SILENCE_S


async def test_after_a_restart_the_first_agent_beats_as_seldom_as_all_that_are_awaited_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "BEATS_A_SECOND", 1)
    (fresh := tmp_path / "fresh").mkdir()
    names = [f"n{number}" for number in range(4)]
    async with a_master(tmp_path) as master:
        for name in names:
            await master.running(await master.agent(name), gpus=2)
    async with a_master(tmp_path) as master:
        assert (await master.connect(make_hello("n0")).register()).heartbeat_s == 4.0
    async with a_master(fresh) as master:
        assert (await master.connect(make_hello("n0")).register()).heartbeat_s == 2.0


async def test_an_agent_hears_how_often_to_send_heartbeats_when_more_or_fewer_are_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "BEATS_A_SECOND", 1)
    monkeypatch.setattr(agents, "NODE_SILENCE_S", 0.01)
    async with a_master(tmp_path) as master:
        first = await master.agent("n1")

        async def hears() -> float:
            await beat(first, number=1)
            return (await first.receive("heard")).heartbeat_s

        assert await hears() == 0.0, "it is what it was asked for at first"
        others = [await master.agent(name) for name in ("n2", "n3", "n4")]
        assert await hears() == 4.0
        assert await hears() == 0.0
        for other in others:
            await other.hang_up()
        async with asyncio.timeout(DEADLINE_S):
            while await hears() != 2.0:
                await asyncio.sleep(0.01)


async def test_nodes_that_are_lost_do_not_make_the_others_beat_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "BEATS_A_SECOND", 1)
    monkeypatch.setattr(agents, "NODE_SILENCE_S", 0.01)
    async with a_master(tmp_path) as master:
        for name in ("n1", "n2", "n3", "n4"):
            await (await master.agent(name)).hang_up()
        async with asyncio.timeout(DEADLINE_S):
            while (await master.connect(make_hello("n5")).register()).heartbeat_s > 2.0:
                await asyncio.sleep(0.01)
