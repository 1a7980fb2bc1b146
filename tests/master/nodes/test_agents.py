"""The master and the agents of its nodes, over real streams."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_master.loop import MasterLoop
from ebbtide_master.nodes import agents
from ebbtide_master.nodes.heartbeats import HEARTBEAT_S
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2

from tests.master.world import (
    DEADLINE_S,
    EXITED,
    FREED,
    GIB,
    REFUSED,
    RUNNING,
    STEPPED_ASIDE,
    a_master,
    make_hello,
    make_status,
)


async def test_a_node_is_welcomed_and_shown(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        welcome = await master.connect(make_hello("n1")).register()
        assert (welcome.cluster_id, welcome.epoch) == (master.store.cluster_id, 1)
        assert welcome.heartbeat_s == HEARTBEAT_S
        node = await master.until_node("n1", "up")
        assert [gpu.info.uuid for gpu in node.gpus] == ["n1-0", "n1-1"]
        assert (node.cpus, node.mem_bytes, node.checkpoint_root_id) == (8.0, 64 * GIB, "root")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"node": ""}, "node"),
        ({"node": "x" * 65}, "node"),
        ({"node": "a\0b"}, "node"),
        ({"node": "a\x1b[2J"}, "node"),
        ({"cpus": float("nan")}, "cpus"),
        ({"cpus": float("inf")}, "cpus"),
        ({"cpus": -1.0}, "cpus"),
        ({"cpus": 0.0}, "cpus"),
        ({"mem_bytes": 2**64 - 1}, "cpus"),
        ({"hostname": "x" * 300}, "hostname"),
        ({"gpus": [agent_pb2.GpuInfo(uuid="a"), agent_pb2.GpuInfo(uuid="a", index=1)]}, "gpus"),
        ({"gpus": [agent_pb2.GpuInfo(uuid="")]}, "gpus"),
        ({"gpus": [agent_pb2.GpuInfo(uuid="a", mem_bytes=2**64 - 1)]}, "gpus"),
        ({"gpus": [agent_pb2.GpuInfo(uuid=str(i)) for i in range(1025)]}, "gpus"),
    ],
)
async def test_what_no_node_can_have_is_rejected_by_the_name_of_the_field(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    async with a_master(tmp_path) as master:
        hello = make_hello("n1")
        for field in change:
            hello.ClearField(field)  # type: ignore[arg-type]
        hello.MergeFrom(agent_pb2.Hello(**change))
        agent = master.connect(hello)
        await agent.send(hello=hello)
        rejected = await agent.receive("rejected")
        assert rejected.reason.startswith(f"{words}:")
        assert await agent.ends() is grpc.StatusCode.OK
        assert "NodeRegistered" not in await master.kinds()


async def test_a_stream_must_begin_with_hello(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = master.connect(make_hello("n1"))
        await agent.send(heartbeat=agent_pb2.Heartbeat())
        assert await agent.ends() is grpc.StatusCode.FAILED_PRECONDITION
        assert await agent.details() == "the first message must be Hello"


async def test_a_stream_on_which_nothing_is_said_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "HELLO_TIMEOUT_S", 0.05)
    async with a_master(tmp_path) as master:
        assert await master.connect(make_hello("n1")).ends() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_clone_of_a_connected_node_is_rejected_and_the_first_stays(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first = await master.agent("n1")
        clone = master.connect(make_hello("n1", hostname="elsewhere", incarnation="second"))
        await clone.send(hello=clone.hello)
        assert "connected already" in (await clone.receive("rejected")).reason
        job = await master.submit()
        assert (await first.receive("launch")).job_id == job


async def test_a_node_with_attempts_of_another_cluster_is_rejected(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        hello = make_hello("n1", cluster_id="another", attempts=[make_status("1", 1, RUNNING)])
        agent = master.connect(hello)
        await agent.send(hello=hello)
        assert "attempts of another cluster (another)" in (await agent.receive("rejected")).reason


@pytest.mark.parametrize(
    "change",
    [{}, {"incarnation": "second", "boot_id": "boot-2"}],
    ids=["the same agent", "the same machine after a reboot"],
)
async def test_an_agent_that_comes_again_takes_the_place_of_its_old_stream(
    tmp_path: Path, change: dict[str, str]
) -> None:
    async with a_master(tmp_path) as master:
        old = await master.agent("n1")
        new = master.connect(make_hello("n1", **change))
        await new.register()
        assert await old.ends() is grpc.StatusCode.OK
        job = await master.submit()
        assert (await new.receive("launch")).job_id == job
        assert "NodeLost" not in await master.kinds()
        assert (await master.until_node("n1", "up")).state == "up"


async def test_no_order_comes_before_the_welcome(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        for _ in range(2):
            await master.submit()
        agent = master.connect(make_hello("n1"))
        await agent.send(hello=agent.hello)
        for _ in range(2):
            await agent.receive("launch")
        assert agent.heard == ["welcome", "launch", "launch"]


async def test_a_launch_says_what_the_job_is_and_where_it_may_run(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=2)
        job = await master.submit(2, env={"A": "b"}, grace_s=7.0, name="train", signal="SIGUSR1")
        launch = await agent.receive("launch")
        assert (launch.job_id, launch.attempt, launch.needs_checkpoint) == (job, 1, False)
        assert {gpu.uuid for gpu in launch.gpus} == {"n1-0", "n1-1"}
        assert (launch.node_rank, launch.num_nodes, launch.world_size) == (0, 1, 2)
        assert (launch.spec.name, dict(launch.spec.env)) == ("train", {"A": "b"})
        assert (launch.spec.grace_s, launch.spec.signal) == (7.0, "SIGUSR1")


async def test_orders_are_repeated_to_an_agent_that_comes_back_without_having_heard_them(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        unheard = await master.submit()
        await agent.receive("launch")
        stopped = await master.running(agent)
        await master.ask.Suspend(client_pb2.JobRequest(job_id=stopped))
        await agent.receive("stop")
        agent.vanish()
        await master.until_node("n1", "down")
        again = await master.agent("n1", attempts=[make_status(stopped, 1, RUNNING)])
        assert (await again.receive("launch")).job_id == unheard
        assert (await again.receive("stop")).job_id == stopped
        assert [len((await master.show(job)).attempts) for job in (unheard, stopped)] == [1, 1]


async def test_a_job_is_ordered_to_host_memory_and_back_by_how_often_it_left_before(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent, suspend=job_pb2.SUSPEND_MODE_SWAP)
        await master.ask.Suspend(client_pb2.JobRequest(job_id=job))
        stop = await agent.receive("stop")
        assert (stop.swap, stop.swaps) == (True, 0)
        out = {"swaps": 1, "swapped_bytes": 3 << 30, "swap_s": 1.25}
        await agent.report(job, 1, agent_pb2.ATTEMPT_PHASE_SWAPPED, **out)
        shown = await master.becomes(job, "SUSPENDED")
        assert shown.suspensions[0].note == "3.0 GiB moved to host memory in 1.2 s"
        assert not shown.allocation
        await master.ask.Resume(client_pb2.JobRequest(job_id=job))
        resume = await agent.receive("resume")
        assert (resume.job_id, resume.attempt, resume.swaps) == (job, 1, 1)
        await agent.report(job, 1, RUNNING, swaps=1)
        assert (await master.becomes(job, "RUNNING")).attempt == 1


async def test_a_status_that_is_said_twice_changes_nothing(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.submit()
        await agent.receive("launch")
        for phase in (RUNNING, RUNNING, EXITED, RUNNING, EXITED, FREED, EXITED, FREED):
            await agent.report(job, 1, phase)
        for _ in range(2):
            assert (await agent.receive("forget")).job_id == job
        assert (await master.becomes(job, "COMPLETED")).exit_code == 0
        about_attempts = [kind for kind in await master.kinds() if kind.startswith("Attempt")]
        assert about_attempts == ["AttemptPlaced", "AttemptStarted", "AttemptExited", "AttemptFreed"]


async def test_a_node_that_is_silent_too_long_is_lost_and_its_job_is_not_started_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "NODE_SILENCE_S", 0.05)
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=2)
        job = await master.running(agent)
        await master.agent("n2", gpus=2)
        agent.vanish()
        lost = await master.becomes(job, "UNREACHABLE")
        assert "silent" in lost.reason
        assert len(lost.attempts) == 1
        await master.agent("n1", attempts=[make_status(job, 1, RUNNING)])
        assert len((await master.becomes(job, "RUNNING")).attempts) == 1


async def test_a_node_is_lost_also_if_its_stream_breaks_while_the_master_writes_down_that_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "NODE_SILENCE_S", 0.05)
    tell, begun, goes_on = MasterLoop.tell, asyncio.Event(), asyncio.Event()

    async def slowly(loop: MasterLoop, *what: Any) -> Any:
        begun.set()
        await goes_on.wait()
        return await tell(loop, *what)

    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        monkeypatch.setattr(MasterLoop, "tell", slowly)
        await agent.fall_silent()
        await begun.wait()
        agent.vanish()
        for _ in range(3):  # the master hears of that before it is asked
            await master.show(job)
        goes_on.set()
        await master.becomes(job, "UNREACHABLE")


async def test_a_node_that_is_back_in_time_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_lost, over = agents.Agents._declare_lost, asyncio.Event()

    async def once_it_is_over(served: Any, node: Any, seconds: float, acknowledged: float = 0.0) -> None:
        await over.wait()
        await declare_lost(served, node, 0.0, acknowledged)

    monkeypatch.setattr(agents.Agents, "_declare_lost", once_it_is_over)
    async with a_master(tmp_path) as master:
        lonely = await master.agent("n2", gpus=0)
        agent = await master.agent("n1")
        job = await master.running(agent)
        agent.vanish()
        await master.until_node("n1", "down")
        await master.agent("n1", attempts=[make_status(job, 1, RUNNING)])
        lonely.vanish()
        await master.until_node("n2", "down")
        over.set()  # the first one's time as well, if it still ran
        async with asyncio.timeout(30):
            async for event in master.ask.WatchEvents(client_pb2.WatchEventsRequest(follow=True)):
                if event.kind == "NodeLost":
                    assert event.node == "n2"
                    break
        assert (await master.show(job)).state == job_pb2.JOB_STATE_RUNNING


@pytest.mark.parametrize("before", [0, 1], ids=["disconnected", "lost"])
async def test_a_node_that_is_back_before_its_silence_is_written_down_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setattr(agents, "NODE_SILENCE_S", 0.0)
    tell, goes_on, turns, waiting = MasterLoop.tell, asyncio.Event(), count(), asyncio.Queue[asyncio.Task[Any]]()

    async def behind_others(loop: MasterLoop, *what: Any) -> Any:
        if next(turns) < before:
            return await tell(loop, *what)

        async def later() -> Any:
            await goes_on.wait()
            return await tell(loop, *what)

        waiting.put_nowait(task := asyncio.create_task(later()))
        return await asyncio.shield(task)

    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        monkeypatch.setattr(MasterLoop, "tell", behind_others)
        agent.vanish()
        silence = await waiting.get()
        monkeypatch.setattr(MasterLoop, "tell", tell)
        await master.agent("n1")
        goes_on.set()
        await silence
        [node] = (await master.ask.ListNodes(client_pb2.ListNodesRequest())).nodes
        assert node.state == "up"


async def test_a_gpu_that_becomes_unhealthy_is_told_once_and_not_used(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=1)

        def beat(healthy: bool) -> agent_pb2.Heartbeat:
            reading = agent_pb2.GpuReading(uuid="n1-0", healthy=healthy, unhealthy_reason="Xid 79", mem_used_bytes=5)
            unknown = agent_pb2.GpuReading(uuid="never heard of", healthy=healthy)
            return agent_pb2.Heartbeat(gpus=[reading, unknown])

        for healthy in (True, False, False, True, False):
            await agent.send(heartbeat=beat(healthy))
        job = await master.submit(hold=True)
        async with asyncio.timeout(30):
            while (await master.kinds()).count("GpuHealthChanged") < 3:
                await asyncio.sleep(0.005)
        (gpu,) = (await master.until_node("n1", "up")).gpus
        assert (gpu.info.healthy, gpu.info.unhealthy_reason, gpu.reading.mem_used_bytes) == (False, "Xid 79", 5)
        await master.ask.Release(client_pb2.JobRequest(job_id=job))
        assert (await master.show(job)).state == job_pb2.JOB_STATE_PENDING
        await agent.send(heartbeat=beat(True))
        assert (await agent.receive("launch")).job_id == job


async def test_a_quarantined_gpu_is_used_again_once_a_reading_shows_it_empty(tmp_path: Path) -> None:
    def beat(used: int) -> agent_pb2.Heartbeat:
        return agent_pb2.Heartbeat(gpus=[agent_pb2.GpuReading(uuid="n1-0", mem_used_bytes=used, healthy=True)])

    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", 1)
        job = await master.running(agent)
        await agent.report(job, 1, FREED, dirty_gpus=["n1-0"])
        await agent.receive("forget")
        waiting = await master.submit()
        await agent.send(heartbeat=beat(20 * 2**30))
        await agent.send(heartbeat=beat(2**20))
        assert (await agent.receive("launch")).job_id == waiting
        assert (await master.kinds()).count("GpuHealthChanged") == 1


async def test_a_node_is_heard_about_its_own_attempts_only(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        other = await master.agent("n2")
        for phase in (EXITED, FREED, REFUSED):
            await other.report(job, 1, phase)
        await other.send(heartbeat=agent_pb2.Heartbeat(gpus=[agent_pb2.GpuReading(uuid="n2-0", healthy=False)]))
        async with asyncio.timeout(30):
            while "GpuHealthChanged" not in await master.kinds():  # all that came before it was heard
                await asyncio.sleep(0.005)
        assert (await master.show(job)).state == job_pb2.JOB_STATE_RUNNING


async def test_a_launch_that_was_stopped_before_it_ran_has_not_failed(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.submit()
        await agent.receive("launch")
        await master.ask.Suspend(client_pb2.JobRequest(job_id=job))
        await agent.receive("stop")
        await agent.report(job, 1, REFUSED, refusal="it was asked to stop before all that it needs was here")
        shown = await master.becomes(job, "PENDING")
        assert (shown.held_by, shown.reason) == ("user", "suspended by user")


async def test_an_end_without_a_record_of_the_exit_is_no_success(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        status = make_status(job, 1, FREED)
        status.ClearField("exit")
        await agent.send(status=status)
        await agent.receive("forget")
        shown = await master.show(job)
        assert "was not recorded" in shown.attempts[0].outcome
        assert not shown.HasField("exit_code")
        assert len(shown.attempts) == 2


async def test_an_impossible_exit_record_is_no_success_and_stops_nobody(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        record = agent_pb2.ExitRecord(signal=2**32 - 1, checkpoint_s=float("nan"), ended_at=float("-inf"))
        await agent.report(job, 1, FREED, exit=record)
        await agent.receive("forget")
        assert "was not recorded" in (await master.show(job)).attempts[0].outcome


async def test_a_node_may_hang_up_at_once_and_nothing_is_lost_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "NODE_SILENCE_S", 0.01)
    async with a_master(tmp_path) as master:
        for _ in range(20):
            agent = master.connect(make_hello("n1"))
            await agent.send(hello=agent.hello)
            agent.vanish()
        await master.agent("n2")
        assert (await master.until_node("n2", "up")).state == "up"
        assert not master.service.consumer.done()


async def test_a_gpu_that_is_lost_stops_its_job_and_one_that_does_not_answer_does_not(tmp_path: Path) -> None:
    def beat(gone: bool, reason: str) -> agent_pb2.Heartbeat:
        reading = agent_pb2.GpuReading(uuid="n1-0", healthy=False, unhealthy_reason=reason, gone=gone)
        return agent_pb2.Heartbeat(gpus=[reading])

    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", 2)
        job = await master.running(agent)
        await agent.send(heartbeat=beat(False, "NVML does not answer"))
        await agent.send(heartbeat=beat(True, "GPU is lost"))
        assert (await agent.receive("stop")).grace_s == 30.0
        assert (await master.show(job)).reason == "GPU n1-0 of node n1 is lost: GPU is lost"
        await agent.report(job, 1, FREED, dirty_gpus=["n1-0"], dirty_reasons=["the GPU is gone"], exit=STEPPED_ASIDE)
        assert [gpu.uuid for gpu in (await agent.receive("launch")).gpus] == ["n1-1"]
        assert (await master.kinds()).count("StopRequested") == 1


async def test_a_quarantined_gpu_that_answers_again_but_is_not_empty_stays_set_aside(tmp_path: Path) -> None:
    def beat(used: int, healthy: bool = True) -> agent_pb2.Heartbeat:
        reading = agent_pb2.GpuReading(uuid="n1-0", mem_used_bytes=used, healthy=healthy)
        return agent_pb2.Heartbeat(gpus=[reading])

    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", 1)
        job = await master.running(agent)
        await agent.report(job, 1, FREED, dirty_gpus=["n1-0"], dirty_reasons=["4.0 GiB are in use"])
        await agent.receive("forget")
        (gpu,) = (await master.until_node("n1", "up")).gpus
        assert (gpu.info.healthy, gpu.info.unhealthy_reason) == (False, f"job {job} ended, but 4.0 GiB are in use")
        waiting = await master.submit()
        await agent.send(heartbeat=beat(4 * GIB, healthy=False))
        await agent.send(heartbeat=beat(4 * GIB))
        assert (await master.show(waiting)).state == job_pb2.JOB_STATE_PENDING
        await agent.send(heartbeat=beat(2**20))
        assert (await agent.receive("launch")).job_id == waiting
        assert (await master.kinds()).count("GpuHealthChanged") == 2


async def test_an_older_agent_is_not_given_a_job_that_reads_standard_input(tmp_path):
    """It would start the job with an input that is empty, and say nothing of that."""
    async with a_master(tmp_path) as master:
        older = await master.agent("n1")
        job = await master.submit(stdin=True, suspend=job_pb2.SUSPEND_MODE_NONE)
        words = "the node's agent is of a version that gives jobs no standard input: upgrade it"
        async with asyncio.timeout(DEADLINE_S):
            while not (await master.show(job)).excluded_nodes:
                await asyncio.sleep(0.01)
        shown = await master.show(job)
        assert (shown.state, dict(shown.excluded_nodes)) == (job_pb2.JOB_STATE_PENDING, {"n1": words})
        newer = await master.agent("n2", stdin=True)
        launch = await newer.receive("launch")
        assert (launch.job_id, launch.spec.stdin) == (job, True)
        await older.hang_up()
        assert "launch" not in older.heard
