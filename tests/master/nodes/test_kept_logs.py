"""The logs of lent nodes are kept by the master, and outlive the nodes."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from ebbtide_core.model import limits
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_master.nodes import agents, kept_logs
from ebbtide_master.nodes.kept_logs import KeptLogs, LogUnavailableError
from ebbtide_protos.v1 import agent_pb2, client_pb2

from tests.master.nodes.test_loans import on_loan, outcome
from tests.master.world import FREED, RUNNING, STEPPED_ASIDE, Agent, Master, a_master

JOB, NODE = JobId("1"), NodeId("n1")


class Reader:
    """A node with one log, of which it sends three bytes at a time; ``breaks_at`` is where it goes away."""

    def __init__(self, log: bytes, breaks_at: int | None = None) -> None:
        self.log, self.breaks_at, self.asked = log, breaks_at, list[agent_pb2.ReadLog]()

    async def __call__(self, node: NodeId, order: agent_pb2.ReadLog) -> agent_pb2.LogData:
        self.asked.append(order)
        if order.tail:
            lines = self.log.splitlines(keepends=True)
            return agent_pb2.LogData(next=len(b"".join(lines[: -order.tail])), lines=min(order.tail, len(lines)))
        if self.breaks_at is not None and order.offset >= self.breaks_at:
            raise LogUnavailableError("gone")
        data = self.log[order.offset : order.offset + 3]
        return agent_pb2.LogData(data=data, end=order.offset + len(data) == len(self.log))


async def keep(logs: KeptLogs, reader: Reader, attempt: int = 1, node: NodeId = NODE, job: JobId = JOB) -> None:
    logs.keep(job, attempt, node, reader)
    await logs.read(node, agent_pb2.ReadLog(job_id=job, attempt=attempt))


async def kept(logs: KeptLogs, **asked: Any) -> agent_pb2.LogData | None:
    return await logs.read(NODE, agent_pb2.ReadLog(**{"job_id": JOB, "attempt": 1, "max_bytes": 1000} | asked))


async def test_a_log_is_copied_once_and_read_as_from_its_node(tmp_path: Path) -> None:
    logs, reader = KeptLogs(tmp_path), Reader(b"one\ntwo\nthree\n")
    await keep(logs, reader)
    asked = len(reader.asked)
    await keep(logs, reader)
    assert len(reader.asked) == asked
    assert await kept(logs) == agent_pb2.LogData(data=reader.log, next=len(reader.log), end=True)
    assert await kept(logs, offset=4, max_bytes=3) == agent_pb2.LogData(data=b"two", next=7)
    assert await kept(logs, tail=2) == agent_pb2.LogData(next=4, lines=2)
    assert await kept(logs, tail=9) == agent_pb2.LogData(next=0, lines=3)
    assert await kept(logs, since=5.0) == agent_pb2.LogData()
    assert await kept(logs, rank=0) == agent_pb2.LogData(error="the node is gone, and of single ranks nothing was kept")
    assert await kept(logs, attempt=2) is None


async def test_who_reads_while_it_is_copied_gets_all_of_it(tmp_path: Path) -> None:
    logs, reader = KeptLogs(tmp_path), Reader(b"one\ntwo\n")
    logs.keep(JOB, 1, NODE, reader)
    answer = await kept(logs)
    assert answer is not None
    assert answer.data == reader.log


async def test_of_a_long_log_the_last_lines_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEPT_LOG_LINES", 2)
    logs = KeptLogs(tmp_path)
    await keep(logs, Reader(b"one\ntwo\nthree\n"))
    answer = await kept(logs)
    assert answer is not None
    assert answer.data == b"[earlier lines of the log went with node n1]\ntwo\nthree\n"


async def test_a_node_that_goes_while_it_is_copied_leaves_what_there_was(tmp_path: Path) -> None:
    logs = KeptLogs(tmp_path)
    await keep(logs, Reader(b"one\ntwo\nthree\n", breaks_at=6))
    answer = await kept(logs)
    assert answer is not None
    assert answer.data == b"one\ntw[later lines of the log went with node n1]\n"


async def test_a_log_is_not_longer_than_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEPT_LOG_BYTES", 6)
    logs = KeptLogs(tmp_path)
    await keep(logs, Reader(b"x" * 30))
    answer = await kept(logs)
    assert answer is not None
    assert answer.data == b"x" * 6 + b"[later lines of the log went with node n1]\n"


async def test_the_oldest_logs_make_room(tmp_path: Path) -> None:
    logs = KeptLogs(tmp_path, most_bytes=3 * 4096)
    for attempt in (1, 2, 3, 4):
        await keep(logs, Reader(b"0123456789"), attempt)
        if (path := tmp_path / f"1/{attempt}.n1.log").exists():
            os.utime(path, (attempt, attempt))
    assert sorted(path.name for path in tmp_path.glob("1/*")) == ["3.n1.log", "4.n1.log"]  # and a tenth is free


async def test_logs_go_with_their_job_and_what_broke_off_with_the_master(tmp_path: Path) -> None:
    logs = KeptLogs(tmp_path)
    for job in ("1", "2", "3"):
        await keep(logs, Reader(b"x\n"), job=JobId(job))
    await logs.remove([JobId("1")])
    await logs.remove_others(lambda job: job == "2")
    (tmp_path / "2/7.n1.part").touch()
    KeptLogs(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")] == ["2/1.n1.log"]


async def test_a_full_disk_keeps_nothing_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    logs = KeptLogs(tmp_path / "logs")
    logs.keep(JOB, 1, NODE, Reader(b"x\n"))
    await asyncio.sleep(0)
    await logs.close()


# --- with a master ---


async def serve(agent: Agent, logs: dict[int, bytes]) -> None:
    """Answer the master's requests for logs."""
    while True:
        read = await agent.receive("read_log")
        data = b"" if read.tail else logs[read.attempt][read.offset :]
        await agent.send(log=agent_pb2.LogData(request_id=read.request_id, data=data, end=True))


async def log_of(master: Master, job: str) -> bytes:
    request = client_pb2.ReadLogsRequest(job_id=job)
    return b"".join([chunk.data async for chunk in master.ask.ReadLogs(request)])


async def test_a_log_is_there_after_its_node_has_gone_and_goes_when_its_job_is_removed(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = master.connect(on_loan(3600.0))
        await agent.register()
        job = await master.running(agent)
        serving = asyncio.create_task(serve(agent, {1: b"it ran\n"}))
        await agent.report(job, 1, FREED)
        await master.becomes(job, "COMPLETED")
        path = tmp_path / f"logs/{job}/1.n1.log"
        async with asyncio.timeout(30.0):
            while not path.exists():
                await asyncio.sleep(0.01)
        agent.vanish()
        await asyncio.gather(serving, return_exceptions=True)
        await master.until_node("n1", "down")
        assert await log_of(master, job) == b"it ran\n"
        assert path.stat().st_mode & 0o077 == 0
        await master.ask.Remove(client_pb2.JobRequest(job_id=job))
        assert not path.exists()


async def test_a_node_that_answers_too_slowly_is_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_logs, "LONGEST_S", 0.1)

    async def slow(node: NodeId, order: agent_pb2.ReadLog) -> agent_pb2.LogData:
        if not order.tail:
            await asyncio.sleep(0.04)
        return agent_pb2.LogData(data=b"" if order.tail else b"x")

    logs = KeptLogs(tmp_path)
    logs.keep(JOB, 1, NODE, slow)
    answer = await kept(logs)
    assert answer is not None
    assert answer.data.lstrip(b"x") == b"[later lines of the log went with node n1]\n"


@pytest.mark.parametrize("job", ["../../escaped", "/tmp/escaped", "99"])
async def test_of_an_attempt_that_never_ran_there_nothing_is_kept(tmp_path: Path, job: str) -> None:
    async with a_master(tmp_path / "home") as master:
        agent = master.connect(on_loan(3600.0))
        await agent.register()
        await agent.report(job, 1, FREED)
        await agent.send(heartbeat=agent_pb2.Heartbeat(beat=1))
        await agent.receive("heard")
        assert "read_log" not in agent.heard
        assert not (tmp_path / "home/logs").exists()
        assert not list(tmp_path.rglob("*escaped*"))


async def test_a_node_that_stays_keeps_its_logs_itself(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        await agent.report(job, 1, FREED)
        await master.becomes(job, "COMPLETED")
        assert not (tmp_path / "logs").exists()
        assert "read_log" not in agent.heard


async def test_of_a_log_that_went_with_its_node_the_others_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "NODE_SILENCE_S", 0.05)
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        await master.ask.Suspend(client_pb2.JobRequest(job_id=job))
        await agent.report(job, 1, FREED, exit=STEPPED_ASIDE)
        await master.becomes(job, "SUSPENDED")
        second = await master.agent("n2")  # it has the same checkpoints
        await agent.hang_up()
        async with asyncio.timeout(30.0):
            while (why := await outcome(master.ask.RemoveNode(client_pb2.NodeRequest(node="n1")))) != "done":
                assert "not lost yet" in why
                await asyncio.sleep(0.02)
        await master.ask.Resume(client_pb2.JobRequest(job_id=job))
        await second.receive("launch")
        await second.report(job, 2, RUNNING)
        await master.becomes(job, "RUNNING")
        serving = asyncio.create_task(serve(second, {2: b"of the second\n"}))
        assert await log_of(master, job) == b"[the log of attempt 1 went with node n1]\nof the second\n"
        serving.cancel()
