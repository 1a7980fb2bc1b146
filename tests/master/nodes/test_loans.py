"""Nodes that end: the agent says when at its registration, and a user or its machine may say so later."""

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_master.nodes import agents
from ebbtide_protos.v1 import agent_pb2, client_pb2

from tests.master.world import FREED, STEPPED_ASIDE, a_master, make_hello, refused


def on_loan(seconds: float, owner: str = "ann", name: str = "n1", **facts) -> agent_pb2.Hello:
    hello = make_hello(name, **facts)
    hello.loan.CopyFrom(agent_pb2.Loan(until=time.time() + seconds, owner=owner))
    return hello


async def test_a_node_says_at_its_registration_when_it_ends_and_who_lends_it(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = master.connect(hello := on_loan(3600.0))
        await agent.register()
        assert (await master.until_node("n1", "up")).loan == hello.loan
        await master.agent("n2")
        reply = await master.ask.ListNodes(client_pb2.ListNodesRequest())
        assert [node.HasField("loan") for node in reply.nodes] == [True, False]


async def test_a_notice_of_its_end_makes_its_jobs_leave_and_tells_the_node(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent, grace_s=300.0)
        reply = await master.ask.EndNode(client_pb2.EndNodeRequest(node="n1", ends_in_s=110.0, user="ann"))
        assert reply.node.loan.until == pytest.approx(time.time() + 110.0, abs=60.0)
        assert [(told.job_id, told.fate) for told in reply.jobs] in ([(job, "waits")], [(job, "leaving")])
        assert (await agent.receive("node_ends")).until == reply.node.loan.until
        assert (await agent.receive("stop")).grace_s == pytest.approx(100.0, abs=30.0)
        await agent.report(job, 1, FREED, exit=STEPPED_ASIDE)
        await master.becomes(job, "SUSPENDED")
        await master.ask.EndNode(client_pb2.EndNodeRequest(node="n1"))
        assert (await agent.receive("launch")).attempt == 2


async def test_what_is_announced_on_the_machine_counts_once_and_a_user_may_say_otherwise(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        notice = agent_pb2.Loan(until=time.time() + 110.0)

        async def end() -> agent_pb2.Loan:
            [node] = (await master.ask.ListNodes(client_pb2.ListNodesRequest())).nodes
            return node.loan

        for _ in range(2):
            await agent.send(heartbeat=agent_pb2.Heartbeat(loan=notice, beat=1))
            await agent.receive("heard")
        assert await end() == notice
        reply = await master.ask.EndNode(client_pb2.EndNodeRequest(node="n1", ends_in_s=5000.0))
        await agent.send(heartbeat=agent_pb2.Heartbeat(loan=notice, beat=2))
        await agent.receive("heard")
        assert await end() == reply.node.loan
        assert [kind for kind in await master.kinds() if "Loan" in kind] == ["LoanAnnounced", "LoanChanged"]
        await master.ask.EndNode(client_pb2.EndNodeRequest(node="n1"))
        assert await end() == notice
        await agent.send(heartbeat=agent_pb2.Heartbeat(beat=3))
        await agent.receive("heard")
        assert await end() == agent_pb2.Loan()


async def test_a_notice_that_came_while_the_master_was_away_goes_before_what_it_knew(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        await master.ask.EndNode(client_pb2.EndNodeRequest(node="n1", ends_in_s=5000.0))
        agent.vanish()
        again = master.connect(hello := on_loan(110.0))
        await again.register()
        assert (await master.until_node("n1", "up")).loan == hello.loan
        await again.send(heartbeat=agent_pb2.Heartbeat(loan=hello.loan, beat=1))
        await again.receive("heard")
        assert "node_ends" not in again.heard


async def test_a_node_that_missed_the_word_on_its_end_hears_it_when_it_is_back(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = master.connect(hello := on_loan(36_000.0))
        await agent.register()
        await master.until_node("n1", "up")
        agent.vanish()
        reply = await master.ask.EndNode(client_pb2.EndNodeRequest(node="n1", ends_in_s=500.0))
        again = master.connect(hello)
        await again.register()
        assert (await again.receive("node_ends")).until == reply.node.loan.until


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"node": "nowhere", "ends_in_s": 5.0}, "node nowhere does not exist"),
        ({"node": "n1", "ends_in_s": -1.0}, "--ends-in: is not between 0 and 3.16224e+07 s from now"),
        ({"node": "n1", "ends_in_s": float("nan")}, "--ends-in: is not between 0 and 3.16224e+07 s from now"),
    ],
)
async def test_an_end_that_cannot_be_is_refused(tmp_path: Path, how: dict[str, object], words: str) -> None:
    async with a_master(tmp_path) as master:
        await master.agent("n1")
        code, said = await refused(master.ask.EndNode(client_pb2.EndNodeRequest(**how)))
        assert code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
        assert said == words


async def test_a_loan_that_cannot_be_is_refused(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        hello = on_loan(float("nan"))
        agent = master.connect(hello)
        await agent.send(hello=hello)
        assert "no time in Unix seconds" in (await agent.receive("rejected")).reason


@pytest.mark.parametrize(
    ("missing", "status", "wanted"),
    [
        (1, {"name": "hpc"}, True),
        (0, {"name": "hpc"}, False),
        (1, {"name": "hpc", "not_asking": "paused"}, False),
        (1, {"name": "other"}, False),
    ],
    ids=["a gang is one node short", "nobody waits", "the supply asks for none", "another supply's"],
)
async def test_an_idle_node_hears_that_a_job_waits_for_it_and_for_others(
    tmp_path: Path, missing: int, status: dict[str, str], wanted: bool
) -> None:
    async with a_master(tmp_path) as master:
        hello = on_loan(3600.0, labels={"supply": "hpc"})
        agent = master.connect(hello)
        await agent.register()
        await master.until_node("n1", "up")
        if missing:
            await master.submit(2 * len(hello.gpus), nodes=2)
        like = make_hello("new", labels={"supply": "hpc"})
        like.loan.CopyFrom(hello.loan)
        request = client_pb2.DemandRequest(like=like, nodes=1, supply=client_pb2.SupplyStatus(**status))
        assert (await master.ask.CountDemand(request)).nodes == missing
        await agent.send(heartbeat=agent_pb2.Heartbeat(beat=1, loan=hello.loan))
        assert (await agent.receive("heard")).wanted == wanted


async def test_an_idle_node_that_the_waiting_jobs_cannot_use_is_not_kept_for_them(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.running(await master.agent("n0"), 2)
        hello = on_loan(3600.0, gpus=1, labels={"supply": "hpc"})
        agent = master.connect(hello)
        await agent.register()
        await master.until_node("n1", "up")
        await master.submit(2)
        like = make_hello("new", labels={"supply": "hpc"})
        like.loan.CopyFrom(hello.loan)
        request = client_pb2.DemandRequest(like=like, nodes=1, supply=client_pb2.SupplyStatus(name="hpc"))
        assert (await master.ask.CountDemand(request)).nodes == 1
        await agent.send(heartbeat=agent_pb2.Heartbeat(beat=1, loan=hello.loan))
        assert not (await agent.receive("heard")).wanted


@pytest.mark.slow
async def test_after_a_thousand_loans_the_nodes_that_are_there_are_listed_and_nothing_is_doubted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "NODE_SILENCE_S", 0.02)
    async with a_master(tmp_path) as master:
        await master.agent("stays")
        for batch in range(50):
            names = [f"hpc-{batch}-{number}" for number in range(20)]
            lent = [master.connect(on_loan(3600.0, name=name)) for name in names]
            for agent in lent:
                await agent.register()
            for agent in lent:
                await agent.hang_up()
            for name in names:
                await master.until_node(name, "down")
                while (await outcome(master.ask.RemoveNode(client_pb2.NodeRequest(node=name)))) != "done":
                    await asyncio.sleep(0.01)  # it is not lost yet
        reply = await master.ask.ListNodes(client_pb2.ListNodesRequest())
        assert ([node.name for node in reply.nodes], list(reply.doubted)) == (["stays"], [])
        assert "SilenceDoubted" not in await master.kinds()


async def outcome(call: Any) -> str:
    """Why it was refused, or ``done``."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return str(error.details())
    return "done"
