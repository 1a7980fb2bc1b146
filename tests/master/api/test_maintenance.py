"""Nodes that are taken out of service, and what jobs ask of them, over the wire."""

import time
from pathlib import Path

import grpc
import pytest
from ebbtide_core.model.constraints import Needs, Selector
from ebbtide_core.model.spec import JobSpec
from ebbtide_master.nodes import supplies as supplies_module
from ebbtide_protos.spec import spec_from_message, spec_to_message
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2

from tests.master.world import FREED, REFUSED, STEPPED_ASIDE, a_master, make_hello, refused, rest


def drain(node: str = "n1", **how) -> client_pb2.DrainNodeRequest:
    return client_pb2.DrainNodeRequest(node=node, user="ann", **how)


def test_needs_are_the_same_behind_the_wire() -> None:
    needs = Needs(
        select=(Selector("zone", ("a", "b")),),
        tolerate=("gold",),
        on=("n1",),
        exclude=("n2",),
        gpu_types=("a100", "rtx 4090"),
        compute_capability="8.6",
        gpu_total_mem_bytes=2**35,
        mixed_gpus=True,
        require_paths=("/data",),
    )
    for spec in (JobSpec(command=("x",), workdir="/", needs=needs), JobSpec(command=("x",), workdir="/")):
        assert spec_from_message(spec_to_message(spec)) == spec
    assert not spec_to_message(JobSpec(command=("x",), workdir="/")).HasField("needs")


async def test_a_drained_node_is_shown_as_such_and_watched_until_nobody_is_there(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent, name="train", grace_s=30.0)
        reply = await master.ask.DrainNode(drain(reason="fans", deadline_s=3600.0))
        assert (reply.node.state, reply.node.reason, reply.node.drain.user) == ("draining", "fans", "ann")
        [told] = reply.jobs
        assert (told.job_id, told.name, told.fate) == (job, "train", "waits")
        assert told.at == pytest.approx(reply.node.drain.deadline - 30.0, abs=1.0)
        watching = master.ask.WatchNode(client_pb2.NodeRequest(node="n1"))
        assert [left.job_id for left in (await watching.read()).jobs] == [job]
        reply = await master.ask.DrainNode(drain(reason="fans", deadline_s=0.0))
        await agent.receive("stop")
        await agent.report(job, 1, FREED, exit=STEPPED_ASIDE)
        last = (await rest(watching))[-1]
        assert (list(last.jobs), last.node.state) == ([], "drained")
        assert (await master.show(job)).reason == "waiting for 1 GPU: every connected node is being drained"
        reply = await master.ask.ResumeNode(client_pb2.NodeRequest(node="n1", user="bob"))
        assert (reply.node.state, reply.node.HasField("drain")) == ("up", False)
        assert (await agent.receive("launch")).attempt == 2


async def test_a_drain_names_the_jobs_whose_checkpoints_are_on_no_other_node(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:

        async def keeps() -> list[str]:
            return [*(await master.ask.DrainNode(drain())).keeps]

        agent = await master.agent("n1")
        job = await master.running(agent)
        await master.ask.DrainNode(drain(deadline_s=0.0))
        await agent.receive("stop")
        await agent.report(job, 1, FREED, exit=STEPPED_ASIDE)
        await rest(master.ask.WatchNode(client_pb2.NodeRequest(node="n1")))
        assert await keeps() == [job]
        await master.agent("n2", checkpoint_root_id="another")
        assert await keeps() == [job]
        await master.agent("n3")
        assert await keeps() == []


async def test_a_forecast_of_a_drain_says_what_becomes_of_each_job_and_changes_nothing(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        suspended = await master.running(agent, name="train", grace_s=30.0)
        never = await master.running(agent, name="fixed", suspend=job_pb2.SUSPEND_MODE_NONE)

        async def fates(**how) -> dict[str, str]:
            reply = await master.ask.ForecastDrain(drain(**how))
            assert (reply.node.state, reply.node.HasField("drain")) == ("up", False)
            return {job.job_id: job.fate for job in reply.jobs}

        before = master.store.last_sequence
        assert await fates() == {suspended: "runs_out", never: "runs_out"}
        assert await fates(deadline_s=0.0) == {suspended: "waits", never: "stays"}, "no other node is there"
        assert await fates(deadline_s=0.0, force=True) == {suspended: "waits", never: "ends"}
        assert master.store.last_sequence == before
        await master.agent("n2")
        before = master.store.last_sequence
        reply = await master.ask.ForecastDrain(drain(deadline_s=3600.0))
        assert reply.jobs[0].fate == "goes_on"
        assert reply.jobs[0].at == pytest.approx(time.time() + 3570.0, abs=60.0)
        assert master.store.last_sequence == before
        assert (await master.show(suspended)).state == job_pb2.JOB_STATE_RUNNING
        code, words = await refused(master.ask.ForecastDrain(drain("n9")))
        assert (code, words) == (grpc.StatusCode.NOT_FOUND, "node n9 does not exist")


async def test_who_watches_a_node_that_is_put_back_is_told(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        await master.running(agent)
        await master.ask.DrainNode(drain())
        watching = master.ask.WatchNode(client_pb2.NodeRequest(node="n1"))
        assert (await watching.read()).node.HasField("drain")
        await master.ask.ResumeNode(client_pb2.NodeRequest(node="n1"))
        assert [reply.node.HasField("drain") for reply in await rest(watching)] == [False]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (drain("nowhere"), "node nowhere does not exist"),
        (drain(force=True), "--force: needs a --deadline, or --now"),
        (drain(deadline_s=-1.0), "--deadline: is not between 0 and 3.16224e+07 s from now"),
        (drain(deadline_s=float("nan")), "--deadline: is not between 0 and 3.16224e+07 s from now"),
        (drain(reason="x" * 201), "--reason: is not a text of at most 200 printable characters"),
        (drain(reason="\x1b[2J"), "--reason: is not a text of at most 200 printable characters"),
    ],
)
async def test_what_cannot_be_drained_is_refused_in_a_line(tmp_path: Path, request_, words) -> None:
    async with a_master(tmp_path) as master:
        await master.agent("n1")
        assert (await refused(master.ask.DrainNode(request_)))[1] == words


async def test_a_path_that_is_missing_is_remembered_of_the_node(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agents = {name: await master.agent(name) for name in ("n1", "n2")}
        needs = job_pb2.Needs(require_paths=["/data"])
        job = await master.submit(needs=needs)
        first = (await master.show(job)).allocation[0].node
        launch = await agents[first].receive("launch")
        assert list(launch.spec.needs.require_paths) == ["/data"]
        cause = agent_pb2.REFUSAL_CAUSE_NO_PATH
        await agents[first].report(job, 1, REFUSED, refusal="/data does not exist here", refusal_cause=cause)
        [other] = agents.keys() - {first}
        assert (await agents[other].receive("launch")).attempt == 2
        assert dict((await master.show(job)).excluded_nodes) == {first: "/data does not exist here"}


async def test_a_node_with_labels_that_none_can_have_is_rejected(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", labels={"zone": "lab"}, taints=["gold"])
        node = await master.until_node("n1", "up")
        assert (dict(node.labels), list(node.taints)) == ({"zone": "lab"}, ["gold"])
        code, words = await refused(master.submit())
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert words.startswith("--tolerate: every node that would do has a taint")
        await agent.hang_up()
        bad = master.connect(make_hello("n2", labels={"a b": "c"}))
        await bad.send(hello=bad.hello)
        assert (await bad.receive("rejected")).reason.startswith("--label: 'a b' is not a label")


async def test_how_many_more_nodes_the_jobs_need_is_counted_and_nothing_changes(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        like = make_hello("new")
        none = await master.ask.CountDemand(client_pb2.DemandRequest(like=like, nodes=3))
        assert (none.nodes, none.why_not) == (0, "")
        size = len(like.gpus)
        await master.running(agent, size)
        jobs = [await master.submit(size) for _ in range(2)]
        for nodes, wanted in ((1, 1), (3, 2), (256, 2)):
            reply = await master.ask.CountDemand(client_pb2.DemandRequest(like=like, nodes=nodes))
            assert (reply.nodes, [*reply.job_ids]) == (wanted, jobs[:wanted])
        reply = await master.ask.CountDemand(client_pb2.DemandRequest(like=like, nodes=3, after_s=3600.0))
        assert (reply.nodes, reply.why_not) == (0, "")
        assert [(await master.show(job)).state for job in jobs] == [job_pb2.JOB_STATE_PENDING] * 2
        assert [node.name for node in (await master.ask.ListNodes(client_pb2.ListNodesRequest())).nodes] == ["n1"]


@pytest.mark.parametrize(
    ("changes", "nodes", "words"),
    [
        ({}, 0, "nodes: is not between 1 and 256"),
        ({}, 257, "nodes: is not between 1 and 256"),
        ({"cpus": 0.0}, 1, "cpus: "),
        ({"pool": "nowhere"}, 1, "pool 'nowhere' does not exist"),
    ],
)
async def test_a_demand_that_makes_no_sense_is_refused_in_a_line(tmp_path: Path, changes, nodes: int, words) -> None:
    async with a_master(tmp_path) as master:
        like = make_hello("new")
        for name, value in changes.items():
            setattr(like, name, value)
        _, said = await refused(master.ask.CountDemand(client_pb2.DemandRequest(like=like, nodes=nodes)))
        assert said.startswith(words)


async def test_who_asks_why_a_job_waits_sees_what_the_supplies_of_its_pool_have_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        like = make_hello("new")
        size = len(like.gpus)
        busy = await master.running(agent, size)
        waits = await master.submit(size)
        status = client_pb2.SupplyStatus(name="hpc", coming=2, since=4.0, reason="Priority")
        await master.ask.CountDemand(client_pb2.DemandRequest(like=like, nodes=3, supply=status))

        async def supplies(job: str) -> list[client_pb2.SupplyStatus]:
            return [*(await master.ask.Explain(client_pb2.ExplainRequest(job_id=job))).supplies]

        assert await supplies(waits) == [status]
        assert await supplies(busy) == []
        monkeypatch.setattr(supplies_module, "HEARD_S", -1.0)
        assert await supplies(waits) == []
        for name in ("name", "reason", "not_asking"):
            wrong = client_pb2.SupplyStatus(name="hpc")
            setattr(wrong, name, "a\nb")
            _, said = await refused(master.ask.CountDemand(client_pb2.DemandRequest(like=like, nodes=1, supply=wrong)))
            assert said.startswith(f"supply.{name}: ")
