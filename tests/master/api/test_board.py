"""The board: what everybody may see of the cluster, told as it changes, and computed once for all who watch."""

import asyncio
import time
from contextlib import asynccontextmanager

import grpc
import pytest
from ebbtide_master.api import board as boards
from ebbtide_master.api import explaining
from ebbtide_master.identity.caller import Role
from ebbtide_master.identity.identities import User
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2

from tests.master.world import DEADLINE_S, FREED, GIB, RUNNING, a_master, make_spec, make_status

STATE = job_pb2.JobState.Name


class Watching:
    """A client's copy of the board."""

    def __init__(self, call) -> None:
        self._call = call
        self.jobs, self.nodes, self.loads, self.queues = {}, {}, {}, {}
        self.updates: list[client_pb2.BoardUpdate] = []

    def take(self, update: client_pb2.BoardUpdate) -> None:
        if update.first:
            self.jobs, self.nodes, self.loads, self.queues = {}, {}, {}, {}
        self.updates.append(update)
        for name, key in (("jobs", "job_id"), ("nodes", "name"), ("loads", "name"), ("queues", "pool")):
            getattr(self, name).update({getattr(row, key): row for row in getattr(update, name)})
        for id in update.jobs_gone:
            del self.jobs[id]
        for name in update.nodes_gone:
            del self.nodes[name], self.loads[name]

    async def until(self, condition):
        """Read until ``condition`` holds of this."""
        async with asyncio.timeout(DEADLINE_S):
            while not (found := condition(self)):
                self.take(await self._call.read())
        return found


@asynccontextmanager
async def watching(master, token: str = ""):
    metadata = (("authorization", f"Bearer {token}"),) if token else None
    call = master.ask.WatchBoard(client_pb2.WatchBoardRequest(), metadata=metadata)
    board = Watching(call)
    try:
        await board.until(lambda board: board.updates and board.updates[-1].last)
        yield board
    finally:
        call.cancel()


def state_of(job: str, state: str):
    return lambda board: job in board.jobs and STATE(board.jobs[job].state) == f"JOB_STATE_{state}"


async def test_it_tells_everything_first_and_then_what_changes(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent(gpus=2)
        first = await master.running(agent, name="first")
        async with watching(master) as board:
            assert board.updates[0].first
            assert (board.jobs[first].name, board.jobs[first].nodes) == ("first", ["n1"])
            assert [gpu.uuid for gpu in board.nodes["n1"].gpus] == ["n1-0", "n1-1"]
            assert [gpu.state for gpu in board.loads["n1"].gpus] == [
                client_pb2.GPU_STATE_ALLOCATED, client_pb2.GPU_STATE_IDLE,
            ]  # fmt: skip
            second, third = await master.submit(1), await master.submit(2)
            await board.until(lambda board: [*board.queues["default"].job_ids] == [third])
            assert board.jobs[second].state == job_pb2.JOB_STATE_STARTING
            assert not any(update.first for update in board.updates[1:])
            held = await board.until(
                lambda board: [h.job_id for gpu in board.loads["n1"].gpus for h in gpu.holders] == [first, second]
            )
            assert held


async def test_a_change_of_state_is_told_before_the_progress_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(boards, "PROGRESS_S", 3600.0)
    async with a_master(tmp_path) as master:
        agent = await master.agent(gpus=2)
        busy, other = await master.running(agent), await master.running(agent)
        async with watching(master) as board:
            await agent.report(busy, 1, RUNNING, progress=job_pb2.Progress(step=7, total=9))
            await master.ask.Suspend(client_pb2.JobRequest(job_id=other))
            await board.until(state_of(other, "SUSPENDING"))
            assert not board.jobs[busy].HasField("step")


async def test_progress_follows_without_any_other_change(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        job = await master.running(agent)
        async with watching(master) as board:
            await agent.report(job, 1, RUNNING, progress=job_pb2.Progress(step=7, total=9))
            await board.until(lambda board: board.jobs[job].step == 7)


async def test_readings_of_gpus_follow(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent(gpus=1)
        job = await master.running(agent)
        async with watching(master) as board:
            own = agent_pb2.GpuProcess(pid=5, mem_bytes=3 * GIB, job_id=job, attempt=1)
            reading = agent_pb2.GpuReading(
                uuid="n1-0", mem_used_bytes=4 * GIB, utilisation=0.83, healthy=True, processes=[own]
            )
            await agent.send(heartbeat=agent_pb2.Heartbeat(gpus=[reading]))
            await board.until(lambda board: board.loads["n1"].gpus[0].HasField("use"))
            gpu = board.loads["n1"].gpus[0]
            assert (round(gpu.use, 2), gpu.mem_used_bytes) == (0.83, 4 * GIB)
            assert [(holder.job_id, holder.mem_used_bytes) for holder in gpu.holders] == [(job, 3 * GIB)]


async def test_a_node_that_comes_back_with_other_gpus_is_shown_with_these(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent(gpus=1)
        async with watching(master) as board:
            await agent.hang_up()
            await board.until(lambda board: board.loads["n1"].state == "down")
            await master.agent(gpus=3)
            await board.until(lambda board: [gpu.uuid for gpu in board.nodes["n1"].gpus] == ["n1-0", "n1-1", "n1-2"])


async def test_many_who_watch_cost_no_more_than_one(tmp_path, monkeypatch):
    rows = []
    made = boards.rows.job_row
    monkeypatch.setattr(boards.rows, "job_row", lambda job, now: (rows.append(job.id), made(job, now))[1])
    async with a_master(tmp_path) as master:
        await master.agent(gpus=1)
        async with watching(master) as first, watching(master) as second, watching(master) as third:
            job = await master.submit(1)
            for board in (first, second, third):
                await board.until(state_of(job, "STARTING"))
            assert rows.count(job) == 1


async def test_nothing_is_computed_while_nobody_watches(tmp_path, monkeypatch):
    looks = []
    look = boards.ClusterBoard._look_at_all
    monkeypatch.setattr(
        boards.ClusterBoard, "_look_at_all", lambda board, cluster: (looks.append(1), look(board, cluster))[1]
    )
    async with a_master(tmp_path) as master:
        await master.submit(1)
        assert looks == []
        async with watching(master):
            assert looks == [1]
        async with watching(master) as board:
            assert len(board.jobs) == 1


async def test_a_job_that_is_over_stays_for_a_while_and_a_node_that_is_removed_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(boards, "MOST_FINISHED", 2)
    async with a_master(tmp_path) as master:
        agent = await master.agent(gpus=1)
        async with watching(master) as board:
            ended = []
            for _ in range(3):
                ended.append(await master.submit(1, hold=True))
                await master.ask.Cancel(client_pb2.CancelRequest(job_id=ended[-1], now=True))
                await board.until(state_of(ended[-1], "CANCELLED"))
            await board.until(lambda board: sorted(board.jobs) == ended[1:])
            await agent.hang_up()
            await board.until(lambda board: board.loads["n1"].state == "down")
            del master.cluster.state.nodes["n1"]  # as `RemoveNode` does, once the node is lost for long
            await board.until(lambda board: not board.nodes)


async def test_in_the_place_of_a_finished_job_that_is_removed_the_last_one_to_end_before_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(boards, "MOST_FINISHED", 2)
    monkeypatch.setattr(boards, "KNOWN_FINISHED", 3)
    async with a_master(tmp_path) as master:
        ended = []
        for _ in range(6):
            ended.append(await master.submit(1, hold=True))
            await master.ask.Cancel(client_pb2.CancelRequest(job_id=ended[-1], now=True))
            await master.becomes(ended[-1], "CANCELLED")
        async with watching(master) as board:
            assert sorted(board.jobs) == ended[-2:]
            while ended:
                await master.ask.Remove(client_pb2.JobRequest(job_id=ended.pop()))
                await board.until(lambda board: sorted(board.jobs) == ended[-2:])


async def test_what_a_job_runs_and_a_reason_that_quotes_it_is_in_nobodys_board(tmp_path):
    async with a_master(tmp_path, guarded=True) as master:
        tokens = {}
        for name, role in (("ann", Role.USER), ("ada", Role.ADMIN)):
            await master.identities.put_user(User(name, role))
            tokens[name] = (await master.identities.issue(name, time.time()))[1]
        agent = await master.agent_with(tokens["ada"])
        bearer = (("authorization", f"Bearer {tokens['ann']}"),)
        spec = make_spec(command=["secret-command"], workdir="/secret-place", name="shown", retries=0)
        job = (await master.ask.Submit(client_pb2.SubmitRequest(spec=spec), metadata=bearer)).job_id
        async with watching(master, tokens["ada"]) as board:
            await agent.receive("launch")
            exit = agent_pb2.ExitRecord(ended_at=1001.0, exit_code=3)
            await agent.send(status=make_status(job, 1, FREED, exit=exit))
            await board.until(state_of(job, "FAILED"))
            assert (board.jobs[job].name, board.jobs[job].reason) == ("shown", "")
            shown = await master.ask.ShowJob(client_pb2.JobRequest(job_id=job), metadata=bearer)
            assert shown.reason
            assert all(b"secret" not in update.SerializeToString() for update in board.updates)


async def test_the_starts_of_a_whole_queue_are_seen_in_one_look_that_is_shared(tmp_path, monkeypatch):
    looks = []
    foreseen = explaining._foreseen_queue
    monkeypatch.setattr(explaining, "_foreseen_queue", lambda *of: (looks.append(1), foreseen(*of))[1])
    async with a_master(tmp_path) as master:
        agent = await master.agent(gpus=1)
        first = await master.running(agent, time_limit_s=1000.0)
        second, third = await master.submit(1, time_limit_s=500.0), await master.submit(1)
        ask = [master.ask.ForecastQueue(client_pb2.ForecastQueueRequest()) for _ in range(5)]
        replies = await asyncio.gather(*ask)
        assert len(looks) == 1
        jobs = {job.job_id: job for job in replies[0].jobs}
        assert [*jobs] == [second, third]
        assert jobs[second].after == [first]
        begun = (await master.show(first)).start_time
        assert jobs[second].start_at == pytest.approx(begun + 1000, abs=5)
        assert jobs[third].start_at == pytest.approx(begun + 1500, abs=5)
        alone = await master.ask.Explain(client_pb2.ExplainRequest(job_id=third))
        assert alone.forecast.start_at == pytest.approx(jobs[third].start_at, abs=5)


async def test_a_reason_that_changes_with_others_is_told_and_what_quotes_somebody_is_not(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent(gpus=2)
        first = await master.running(agent)
        async with watching(master) as board:
            waiting = await master.submit(2)
            await board.until(lambda board: waiting in board.jobs)
            assert board.jobs[waiting].reason == "waiting for 2 GPUs"
            foreign = agent_pb2.GpuProcess(pid=9, mem_bytes=6 * GIB, user="eve", command="secret-miner")
            reading = agent_pb2.GpuReading(uuid="n1-1", mem_used_bytes=6 * GIB, healthy=True, processes=[foreign])
            for _ in range(2):
                await agent.send(heartbeat=agent_pb2.Heartbeat(gpus=[reading]))
            await board.until(lambda board: board.jobs[waiting].reason == "")
            assert "secret-miner" in (await master.show(waiting)).reason
            assert all(b"secret" not in update.SerializeToString() for update in board.updates)
            reply = await master.ask.ForecastQueue(client_pb2.ForecastQueueRequest())
            assert [job.job_id for job in reply.jobs] == [waiting]
            assert b"secret" not in reply.SerializeToString()
            assert first not in [job.job_id for job in reply.jobs]


async def test_a_forecast_of_a_pool_that_does_not_exist_is_refused(tmp_path):
    async with a_master(tmp_path) as master:
        with pytest.raises(grpc.aio.AioRpcError, match="pool 'moon' does not exist"):
            await master.ask.ForecastQueue(client_pb2.ForecastQueueRequest(pool="moon"))
