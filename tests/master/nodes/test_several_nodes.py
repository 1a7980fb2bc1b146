"""The master and a job on two nodes, over real streams."""

from pathlib import Path

from ebbtide_master.identity.visibility import redact
from ebbtide_protos.v1 import agent_pb2, client_pb2

from tests.master.world import (
    EXITED,
    FREED,
    REFUSED,
    RUNNING,
    STEPPED_ASIDE,
    Agent,
    Master,
    a_master,
    make_hello,
    refused,
)

PORT = 20017


async def two(master: Master) -> tuple[Agent, Agent]:
    return await master.agent("n1", 1, address="10.0.0.1"), await master.agent("n2", 1, address="10.0.0.2")


async def started(master: Master, first: Agent, second: Agent) -> str:
    job = await master.submit(2, nodes=2)
    await first.receive("launch")
    await first.report(job, 1, RUNNING, master_port=PORT)
    await second.receive("launch")
    await second.report(job, 1, RUNNING, pid=200)
    await master.becomes(job, "RUNNING")
    return job


async def test_each_node_is_told_its_part_and_the_second_where_to_meet(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first, second = await two(master)
        job = await master.submit(2, nodes=2)
        launch = await first.receive("launch")
        assert (launch.node_rank, launch.num_nodes, launch.world_size, launch.master_port) == (0, 2, 2, 0)
        await first.report(job, 1, RUNNING, master_port=PORT)
        launch = await second.receive("launch")
        assert (launch.node_rank, launch.num_nodes, launch.world_size) == (1, 2, 2)
        assert (launch.master_addr, launch.master_port) == ("10.0.0.1", PORT)
        assert [gpu.uuid for gpu in launch.gpus] == ["n2-0"]


async def test_both_are_stopped_and_forgotten_together(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first, second = await two(master)
        job = await started(master, first, second)
        assert (await master.show(job)).pid == 100
        await master.ask.Suspend(client_pb2.JobRequest(job_id=job))
        for agent in (second, first):
            assert (await agent.receive("stop")).grace_s == 180
            await agent.report(job, 1, FREED, exit=STEPPED_ASIDE)
        await master.becomes(job, "SUSPENDED")
        for agent in (second, first):
            assert (await agent.receive("forget")).attempt == 1


async def test_one_that_fails_stops_the_other(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first, second = await two(master)
        job = await started(master, first, second)
        await second.report(job, 1, EXITED, exit=agent_pb2.ExitRecord(exit_code=3))
        assert (await first.receive("stop")).grace_s == 5
        await first.report(job, 1, FREED, exit=STEPPED_ASIDE)
        shown = await master.becomes(job, "FAILED")
        assert (shown.exit_code, shown.reason) == (3, "failed with exit code 3")


async def test_what_a_node_said_when_it_refused_its_part_is_hidden_from_other_users_at_once(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first, second = await two(master)
        job = await master.submit(2, nodes=2)
        await first.receive("launch")
        await first.report(job, 1, RUNNING, master_port=PORT)
        await second.receive("launch")
        await second.report(job, 1, REFUSED, refusal="layer 7 is missing")
        await first.receive("stop")
        listed = await master.ask.ListJobs(client_pb2.ListJobsRequest())
        told = await master.ask.Explain(client_pb2.ExplainRequest(job_id=job))
        board = await master.ask.WatchBoard(client_pb2.WatchBoardRequest()).read()
        assert told.state == "SUSPENDING"
        assert told.reason == listed.jobs[0].reason == "node n2 did not start its part: layer 7 is missing"
        for reply in (listed, told, board):
            assert "layer 7" not in str(redact(reply, "bob", lambda id: "ann"))
        assert job in str(board)


async def test_the_state_of_a_gang_survives_a_restart_of_the_master(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        job = await master.submit(2, nodes=2)
        first = await master.agent("n1", 1)
        await master.agent("n2", 1)
        await first.receive("launch")
        await first.report(job, 1, RUNNING, master_port=PORT)
        await first.hang_up()
    async with a_master(tmp_path) as master:
        second = master.connect(make_hello("n2", 1))
        await second.register()
        launch = await second.receive("launch")
        assert (launch.job_id, launch.attempt, launch.master_port) == (job, 1, PORT)


async def test_the_log_of_each_node_can_be_asked_for(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first, second = await two(master)
        job = await started(master, first, second)
        stream = master.ask.ReadLogs(client_pb2.ReadLogsRequest(job_id=job, attempt=1, node="n2"))
        read = await second.receive("read_log")
        await second.send(log=agent_pb2.LogData(request_id=read.request_id, data=b"rank 1", end=True))
        assert [chunk.data async for chunk in stream] == [b"rank 1"]
        elsewhere = client_pb2.ReadLogsRequest(job_id=job, attempt=1, node="x")
        _, words = await refused(master.ask.ReadLogs(elsewhere).read())
        assert words.endswith("attempt 1 of job 1 was on node n1, n2, not on 'x'")


async def test_a_rank_is_asked_of_the_node_that_has_it(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first, second = await two(master)
        job = await started(master, first, second)
        stream = master.ask.ReadLogs(client_pb2.ReadLogsRequest(job_id=job, attempt=1, rank=1))
        read = await second.receive("read_log")
        assert (read.HasField("rank"), read.rank) == (True, 1)
        await second.send(log=agent_pb2.LogData(request_id=read.request_id, data=b"rank 1", end=True))
        assert [chunk.data async for chunk in stream] == [b"rank 1"]
        _, words = await refused(master.ask.ReadLogs(client_pb2.ReadLogsRequest(job_id=job, attempt=1, rank=2)).read())
        assert words.endswith("attempt 1 of job 1 had no rank 2")
