"""Nodes that say that their machine goes down, and agents of other versions."""

from pathlib import Path

import pytest
from ebbtide_protos import protocol
from ebbtide_protos.v1 import agent_pb2, client_pb2

from tests.master.world import FREED, STEPPED_ASIDE, Agent, a_master, make_hello


async def beat(agent: Agent, leaving: bool) -> None:
    await agent.send(heartbeat=agent_pb2.Heartbeat(leaving=leaving))


async def test_a_node_whose_machine_goes_down_is_left_by_its_jobs_which_come_back_with_it(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        await beat(agent, True)
        await beat(agent, True)
        await agent.receive("stop")
        await agent.report(job, 1, FREED, exit=STEPPED_ASIDE)
        drained = await master.until_node("n1", "drained")
        assert (drained.drain.user, drained.reason) == ("the node itself", "its machine is going down")
        agent.vanish()
        again = master.connect(make_hello("n1", boot_id="boot-2"))
        await again.register()
        await beat(again, False)
        assert (await again.receive("launch")).attempt == 2
        assert (await master.kinds()).count("NodeDrained") == 1


async def test_what_somebody_drained_is_left_sooner_and_stays_out_of_service(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        await master.ask.DrainNode(client_pb2.DrainNodeRequest(node="n1", user="ann", reason="fans"))
        await beat(agent, True)
        await agent.receive("stop")
        await agent.report(job, 1, FREED, exit=STEPPED_ASIDE)
        await beat(agent, False)
        drained = await master.until_node("n1", "drained")
        assert (drained.drain.user, drained.reason) == ("ann", "fans")


@pytest.mark.parametrize("spoken", [0, protocol.PROTOCOL - 1, protocol.PROTOCOL, protocol.PROTOCOL + 1])
async def test_an_agent_of_the_version_before_is_taken_and_one_of_the_next_may_try(tmp_path: Path, spoken: int) -> None:
    async with a_master(tmp_path) as master:
        agent = master.connect(make_hello("n1", protocol=spoken))
        welcome = await agent.register()
        assert welcome.protocol == protocol.PROTOCOL
        await master.until_node("n1", "up")


async def test_an_older_agent_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PROTOCOL", 7)
    async with a_master(tmp_path) as master:
        agent = master.connect(make_hello("n1", protocol=5))
        await agent.send(hello=agent.hello)
        rejected = await agent.receive("rejected")
        assert rejected.reason == "the agent speaks version 5 of the protocol, and 6 is needed: upgrade the agent"
