"""The timeline as a client asks for it, from a history that the master keeps beside its journal."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_master.history import recorder
from ebbtide_protos.v1 import timeline_pb2, usage_pb2

from tests.master.world import DEADLINE_S, FREED, Master, a_master, refused, rest

JOBS = timeline_pb2.TIMELINE_LANES_JOBS
COMPUTING = timeline_pb2.TIMELINE_DOING_COMPUTING


async def ask(master: Master, **fields: Any) -> timeline_pb2.QueryTimelineReply:
    now = time.time()
    request = timeline_pb2.QueryTimelineRequest(**({"since": now - 3600, "until": now + 3600} | fields))
    reply: timeline_pb2.QueryTimelineReply = await master.ask.QueryTimeline(request)
    return reply


async def until(master: Master, holds: Any, **fields: Any) -> timeline_pb2.QueryTimelineReply:
    """The timeline once this holds: the history follows the journal, and is not waited for."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds(reply := await ask(master, **fields)):
            await asyncio.sleep(0.01)
    return reply


def ended(reply: timeline_pb2.QueryTimelineReply) -> bool:
    """Whether the only job of a history has ended in it."""
    spans = [span for lane in reply.lanes for span in lane.spans]
    return bool(spans) and reply.done == 1.0 and not any(span.open for span in spans)


async def a_job_that_ended(master: Master) -> None:
    agent = await master.agent()
    job = await master.running(agent)
    await agent.report(job, 1, FREED)
    await master.becomes(job, "COMPLETED")


async def test_it_comes_to_the_seconds_of_usage_and_is_the_same_after_the_history_was_deleted(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await a_job_that_ended(master)
        before = await until(master, ended)
        of_job = await ask(master, lanes=JOBS)
        request = usage_pb2.UsageRequest(edges=(0.0, time.time() + 3600), by=("user", "job"))
        [usage] = await rest(master.ask.Usage(request))
    (lane,) = [lane for lane in before.lanes if lane.spans]
    assert (lane.node, lane.gpu_index, lane.spans[0].user) == ("n1", 0, "ann")
    assert lane.spans[-1].why == "completed"
    for lanes in (before.lanes, of_job.lanes):
        seconds = sum(span.gpu_s for lane in lanes for span in lane.spans if span.doing == COMPUTING)
        assert seconds == pytest.approx(usage.accounts[0].computing_gpu_s, abs=0.001)
        seconds = sum(span.gpu_s for lane in lanes for span in lane.spans if span.gpus)
        assert seconds == pytest.approx(usage.accounts[0].allocated_gpu_s, abs=0.001)
    for path in tmp_path.glob("history.db*"):
        path.unlink()
    async with a_master(tmp_path) as master:
        after = await until(master, lambda reply: ended(reply) and reply.lanes[0].spans[-1].end == lane.spans[-1].end)
        jobs = [span for lane in after.lanes for span in lane.spans if span.job_id]
        assert jobs == list(lane.spans)


async def test_a_broken_history_harms_no_scheduling_and_the_reply_says_it(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_bytes(b"no database at all, for as long as it has a header" * 99)
    async with a_master(tmp_path) as master:
        reply = await until(master, lambda reply: bool(reply.problem))
        assert "remove it, and it is made again from the journal" in reply.problem
        await a_job_that_ended(master)
        assert list((await ask(master)).lanes) == []


WRONG: dict[str, dict[str, Any]] = {
    "since: is not a time in Unix seconds": {"since": -1.0},
    "until: is not a time in Unix seconds": {"until": float("nan")},
    "until: is not after 'since', and within 31 days of it": {"since": 2.0, "until": 1.0},
    "until: is not after 'since', and within 31 days of it ": {"since": 1.0, "until": 1e9},
    "limit: 201 lanes are over the limit of 200": {"limit": 201},
    "buckets: 10001 are over the limit of 10000": {"buckets": 10_001},
    "lanes: there are only those of GPUs, jobs, pools and nodes": {"lanes": 7},
    "buckets: lanes of pools and nodes have 1 to 240": {"lanes": timeline_pb2.TIMELINE_LANES_POOLS},
    "buckets: lanes of pools and nodes have 1 to 240 ": {"lanes": timeline_pb2.TIMELINE_LANES_NODES, "buckets": 241},
    "node: lanes of pools are those of all nodes": {
        "lanes": timeline_pb2.TIMELINE_LANES_POOLS,
        "buckets": 1,
        "node": "n1",
    },
    "node: is not a text of at most 64 printable characters": {"node": "a\nb"},
    "user: is not a name of at most 64 printable characters": {"of_user": "\x1b"},
}


async def test_a_history_that_hangs_holds_up_neither_jobs_nor_the_end_of_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, hangs = threading.Event(), threading.Event()

    def stuck(*arguments: object) -> None:
        hangs.set()
        go_on.wait()
        raise OSError("the disk answers at last")

    monkeypatch.setattr(recorder, "HistoryFile", stuck)
    monkeypatch.setattr(recorder, "CLOSE_S", 0.01)
    async with a_master(tmp_path) as master:
        assert await asyncio.to_thread(hangs.wait, DEADLINE_S)
        await a_job_that_ended(master)
        assert (await ask(master)).done == 0.0
    go_on.set()


async def test_a_question_without_a_meaning_is_refused(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        for words, wrong in WRONG.items():
            assert await refused(ask(master, **wrong)) == (grpc.StatusCode.INVALID_ARGUMENT, words.strip())


async def test_a_window_with_too_much_in_it_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_master(tmp_path) as master:
        await a_job_that_ended(master)
        await until(master, ended)
        monkeypatch.setattr("ebbtide_master.history.reading.QUERY_S", -1.0)
        monkeypatch.setattr("ebbtide_master.history.reading.STEPS_BETWEEN_LOOKS", 1)
        words = "since: there is too much in this window: choose a shorter one"
        assert await refused(ask(master)) == (grpc.StatusCode.INVALID_ARGUMENT, words)
