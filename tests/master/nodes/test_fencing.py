"""Silent nodes as the master serves them: a person's word, the fence hook, doubts, and attempts that are set aside."""

import asyncio
from pathlib import Path

import grpc
import pytest
from ebbtide_core.model import limits
from ebbtide_master.config.fencing import FencingSettings
from ebbtide_master.config.file import Config
from ebbtide_master.nodes import agents, fencing
from ebbtide_protos.v1 import client_pb2

from tests.master.world import FREED, RUNNING, Master, a_master, make_status, refused


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "NODE_SILENCE_S", 0.05)
    monkeypatch.setattr(fencing, "LOOK_S", 0.02)
    monkeypatch.setattr(fencing, "FIRST_PAUSE_S", 0.05)


async def confirm_dead(master: Master, node: str) -> client_pb2.NodeReply:
    return await master.ask.ConfirmDead(client_pb2.NodeRequest(node=node, user="root"))  # type: ignore[no-any-return]


async def node_with(master: Master, name: str, strays: int) -> client_pb2.Node:
    """The node once so many attempts are set aside there."""
    async with asyncio.timeout(30):
        while True:
            [node] = [n for n in (await master.ask.ListNodes(client_pb2.ListNodesRequest())).nodes if n.name == name]
            if len(node.strays) == strays:
                return node  # type: ignore[no-any-return]
            await asyncio.sleep(0.005)


async def recorded(master: Master, kind: str) -> None:
    async with asyncio.timeout(20):
        async for event in master.ask.WatchEvents(client_pb2.WatchEventsRequest(follow=True)):
            if event.kind == kind:
                return


async def test_the_jobs_of_a_node_that_was_confirmed_dead_go_on_elsewhere(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first = await master.agent("n1", gpus=1)
        job = await master.running(first)
        second = await master.agent("n2", gpus=1)
        code, words = await refused(confirm_dead(master, "n1"))
        assert (code, words) == (grpc.StatusCode.FAILED_PRECONDITION, "node n1 is connected: it is not dead")
        first.vanish()
        await master.becomes(job, "UNREACHABLE")
        reply = await confirm_dead(master, "n1")
        assert (reply.node.state, reply.node.reason, list(reply.jobs)) == ("down", "confirmed dead by root", [])
        launch = await second.receive("launch")
        assert (launch.job_id, launch.attempt) == (job, 2)


async def test_what_comes_back_from_a_dead_node_is_ended_there_and_then_forgotten(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first = await master.agent("n1", gpus=1)
        job = await master.running(first)
        first.vanish()
        await master.becomes(job, "UNREACHABLE")
        await confirm_dead(master, "n1")
        back = await master.agent("n1", gpus=1, attempts=[make_status(job, 1, RUNNING, gpus=["n1-0"])])
        stop = await back.receive("stop")
        assert (stop.job_id, stop.attempt, stop.grace_s) == (job, 1, 0.0)
        [stray] = (await node_with(master, "n1", 1)).strays
        assert (stray.kind, stray.ending, list(stray.gpus)) == ("over", True, ["n1-0"])
        assert "launch" not in back.heard
        await back.report(job, 1, FREED)
        launch = await back.receive("launch")
        assert (launch.job_id, launch.attempt) == (job, 2)
        assert "forget" in back.heard


async def test_an_attempt_that_the_journal_does_not_know_is_shown_and_ended_by_a_person_only(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=1, attempts=[make_status("77", 2, RUNNING, gpus=["n1-0"])])
        [stray] = (await node_with(master, "n1", 1)).strays
        assert (stray.job_id, stray.attempt, stray.kind, stray.ending) == ("77", 2, "unknown", False)
        job = await master.submit()
        assert int(job) > 77
        assert agent.heard == ["welcome"]
        request = client_pb2.EndStrayRequest(node="n1", job_id="77", attempt=2, grace_s=7.0, user="root")
        assert (await master.ask.EndStray(request)).node.strays[0].ending
        assert (await agent.receive("stop")).grace_s == 7.0
        await agent.report("77", 2, FREED)
        assert (await agent.receive("launch")).job_id == job
        code, words = await refused(master.ask.EndStray(request))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert words == "77.2 is not set aside on node n1: 'ebb cancel' is for jobs"


async def test_a_heartbeat_is_answered_so_that_leases_go_on(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=0)
        await agent.send(heartbeat={"beat": 3})
        assert (await agent.receive("heard")).beat == 3


async def test_a_job_whose_lease_is_over_goes_on_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEASE_MARGIN_S", 0.2)
    async with a_master(tmp_path) as master:
        first = await master.agent("n1", gpus=1)
        job = await master.submit(grace_s=0.0, failover_after_s=0.3)
        assert (await first.receive("launch")).spec.failover_after_s == 0.3
        await first.report(job, 1, RUNNING, leased=True)
        await master.becomes(job, "RUNNING")
        second = await master.agent("n2", gpus=1)
        first.vanish()  # it counts as unreachable until then, which on a busy machine may be no time at all
        assert (await second.receive("launch")).attempt == 2
        assert "its lease ended" in (await master.show(job)).attempts[0].outcome


class TestHook:
    """The fence hook."""

    @staticmethod
    def config(tmp_path: Path, script: str, timeout_s: float = 30.0) -> Config:
        hook = tmp_path / "hook"
        hook.write_text(f"#!/bin/sh\n{script}\n")
        hook.chmod(0o700)
        return Config(fencing=FencingSettings(hook=(str(hook), "off"), after_s=0.1, timeout_s=timeout_s))

    async def test_what_it_makes_sure_of_is_a_proof(self, tmp_path: Path) -> None:
        script = f'echo "$1 $EBB_NODE $EBB_ADDRESS $EBB_SILENT_S" > {tmp_path}/told'
        async with a_master(tmp_path / "home", config=self.config(tmp_path, script)) as master:
            agent = await master.agent("n1", gpus=1, address="10.0.0.1")
            job = await master.running(agent)
            second = await master.agent("n2", gpus=1)
            agent.vanish()
            assert (await second.receive("launch")).job_id == job
            *told, silent_s = (tmp_path / "told").read_text().split()
            assert told == ["off", "n1", "10.0.0.1"]
            assert silent_s.isdecimal()
            assert "NodeConfirmedDead" in await master.kinds()

    @pytest.mark.parametrize(
        ("script", "timeout_s", "why"),
        [
            ("echo no outlet >&2; exit 3", 30.0, "ended with 3: no outlet"),
            ("exec sleep 60", 1.0, "not done after 1 s"),
        ],
    )
    async def test_one_that_fails_proves_nothing_and_is_tried_again(
        self, tmp_path: Path, script: str, timeout_s: float, why: str
    ) -> None:
        script = f"[ -e {tmp_path}/again ] && exit 0; touch {tmp_path}/again; {script}"
        async with a_master(tmp_path / "home", config=self.config(tmp_path, script, timeout_s)) as master:
            agent = await master.agent("n1", gpus=1)
            await master.running(agent)
            agent.vanish()
            await recorded(master, "NodeConfirmedDead")
            events = [event async for event in master.ask.WatchEvents(client_pb2.WatchEventsRequest())]
            failed, *_ = [event.text for event in events if event.kind == "FenceFailed"]  # a slow one may fail again
            assert failed.startswith(f"fence hook: {why}; tried again in")

    async def test_it_leaves_nodes_alone_on_which_no_job_waits(self, tmp_path: Path) -> None:
        async with a_master(tmp_path / "home", config=self.config(tmp_path, "exit 0")) as master:
            idle, agent = await master.agent("n1", gpus=1), await master.agent("n2", gpus=2)
            await master.running(agent, gpus=2)
            idle.vanish()
            await master.until_node("n1", "down")
            agent.vanish()
            await recorded(master, "NodeConfirmedDead")
            events = [event async for event in master.ask.WatchEvents(client_pb2.WatchEventsRequest())]
            assert [event.node for event in events if event.kind == "NodeConfirmedDead"] == ["n2"]

    async def test_it_is_not_run_while_the_master_doubts_itself_but_is_once_a_person_says_so(
        self, tmp_path: Path
    ) -> None:
        script = f"touch {tmp_path}/ran"
        async with a_master(tmp_path / "home", config=self.config(tmp_path, script)) as master:
            lost = [await master.agent(name, gpus=1) for name in ("n1", "n2", "n3")]
            for agent in lost:
                await master.running(agent)
            for agent in lost:
                agent.vanish()
            async with asyncio.timeout(30):
                while list((await master.ask.ListNodes(client_pb2.ListNodesRequest())).doubted) != ["n1", "n2", "n3"]:
                    await asyncio.sleep(0.005)
            assert not (tmp_path / "ran").exists()
            reply = await master.ask.BelieveSilence(client_pb2.BelieveSilenceRequest(user="root"))
            assert list(reply.nodes) == ["n1", "n2", "n3"]
            await recorded(master, "NodeConfirmedDead")
            assert (tmp_path / "ran").exists()
