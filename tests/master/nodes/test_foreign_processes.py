"""Processes of no job: what agents say of them becomes facts, and only when it is news."""

import asyncio
from pathlib import Path

from ebbtide_core.model import limits
from ebbtide_core.model.types import ForeignProcess, GpuLink, LinkKind
from ebbtide_master.convert import foreign_from_messages, gpu_from_message
from ebbtide_protos.v1 import agent_pb2, client_pb2

from tests.master.world import GIB, RUNNING, a_master


def process(pid: int = 7, mem_bytes: int | None = 10 * GIB, **fields: str) -> agent_pb2.GpuProcess:
    return agent_pb2.GpuProcess(pid=pid, mem_bytes=mem_bytes, **({"user": "alice", "command": "python"} | fields))


def beat(*processes: agent_pb2.GpuProcess, **fields: bool) -> agent_pb2.Heartbeat:
    reading = agent_pb2.GpuReading(uuid="n1-0", processes=processes, **({"healthy": True} | fields))
    return agent_pb2.Heartbeat(gpus=[reading])


async def changes(master, agent) -> int:
    """How often foreign use has changed, once all that the agent said was heard."""
    job = await master.submit(hold=True)
    await agent.report(job, 1, RUNNING)
    async with asyncio.timeout(30):
        await agent.send(heartbeat=agent_pb2.Heartbeat(gpus=[agent_pb2.GpuReading(uuid="n1-1", healthy=False)]))
        while "GpuHealthChanged" not in await master.kinds():
            await asyncio.sleep(0.005)
    return (await master.kinds()).count("ForeignUseChanged")


async def test_a_gpu_with_a_foreign_process_is_offered_at_the_heartbeat_that_shows_it_gone(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=1)
        await agent.send(heartbeat=beat(process()))
        async with asyncio.timeout(30):
            while "ForeignUseChanged" not in await master.kinds():
                await asyncio.sleep(0.005)
        job = await master.submit()
        assert (await master.show(job)).reason.endswith("GPU 0 of node n1 is used by alice's python (10 GiB)")
        (gpu,) = (await master.until_node("n1", "up")).gpus
        assert [(found.pid, found.user, found.mem_bytes) for found in gpu.foreign] == [(7, "alice", 10 * GIB)]
        used = (await master.ask.ListNodes(client_pb2.ListNodesRequest())).foreign_gpu_s
        assert list(used) == ["alice"]
        await agent.send(heartbeat=beat())
        assert (await agent.receive("launch")).job_id == job


async def test_the_journal_does_not_grow_with_every_reading(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=2)
        for more in range(50):
            await agent.send(heartbeat=beat(process(mem_bytes=10 * GIB + more)))
        await agent.send(heartbeat=beat(processes_unknown=True))
        await agent.send(heartbeat=beat(healthy=False))
        assert await changes(master, agent) == 1


async def test_a_process_of_a_job_or_one_that_ended_before_anybody_could_look_is_not_foreign(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=2)
        await agent.send(heartbeat=beat(process(job_id="1")))
        await agent.send(heartbeat=beat(process(8, user="", command="")))
        await agent.send(heartbeat=beat())
        await agent.send(heartbeat=beat(process(9, user="", command="")))
        assert await changes(master, agent) == 0


async def test_one_that_stays_is_foreign_even_if_nobody_knows_whose_it_is(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=2)
        for _ in range(3):
            await agent.send(heartbeat=beat(process(9, user="", command="")))
        assert await changes(master, agent) == 1


async def test_what_was_there_when_the_agent_came_is_known_before_anything_is_placed(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        job = await master.submit()
        taken = agent_pb2.GpuInfo(uuid="n1-0", index=0, mem_bytes=GIB, healthy=True, processes=[process()])
        free = agent_pb2.GpuInfo(uuid="n1-1", index=1, mem_bytes=GIB, healthy=True)
        agent = await master.agent("n1", gpus=[taken, free], share_with_foreign=True)
        launch = await agent.receive("launch")
        assert (launch.job_id, [gpu.uuid for gpu in launch.gpus]) == (job, ["n1-1"])
        agent.vanish()
        await master.until_node("n1", "down")
        await master.submit()
        again = await master.agent("n1", gpus=[free, agent_pb2.GpuInfo(uuid="n1-0", index=0, healthy=True)])
        assert (await master.kinds()).count("ForeignUseChanged") == 1
        nodes = (await master.ask.ListNodes(client_pb2.ListNodesRequest())).nodes
        assert [len(gpu.foreign) for gpu in nodes[0].gpus] == [1, 0]
        again.vanish()


def test_processes_are_bounded_in_number_and_length() -> None:
    found = foreign_from_messages(process(pid, GIB, command="x" * 1000 + "\n") for pid in range(40, 0, -1))
    assert [process.pid for process in found] == [*range(1, 17)]
    assert sum(process.mem_bytes or 0 for process in found) == 40 * GIB
    assert len(found[0].command) == limits.MAX_FOREIGN_TEXT
    assert foreign_from_messages([process(1, None, command="a\tb")]) == (ForeignProcess(1, "alice", "ab", None),)


def test_links_of_gpus_come_through_and_unknown_ones_are_left_out() -> None:
    peers = [
        agent_pb2.GpuPeer(uuid="b", link=agent_pb2.GPU_LINK_NVLINK),
        agent_pb2.GpuPeer(uuid="c", link=agent_pb2.GPU_LINK_UNSPECIFIED),
        agent_pb2.GpuPeer(uuid="d", link=77),
    ]
    facts = gpu_from_message(agent_pb2.GpuInfo(uuid="a", numa_node=0, parent="p", peers=peers))
    assert (facts.numa_node, facts.parent, facts.links) == (0, "p", (GpuLink("b", LinkKind.NVLINK),))
    assert gpu_from_message(agent_pb2.GpuInfo(uuid="a")).numa_node is None
