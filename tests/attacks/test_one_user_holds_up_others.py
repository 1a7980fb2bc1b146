"""What one user asks for is done in parts: whoever asks meanwhile is answered between two of them."""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.commands import Record, WakeAt
from ebbtide_core.model import limits
from ebbtide_core.model.dependency import AfterKind, Dependency
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import CheckpointFacts, JobId
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.forecast import fork
from ebbtide_master import loop as loops
from ebbtide_master.api import explaining, journal
from ebbtide_master.api.copies import ForkedCopies
from ebbtide_master.api.listings import names_of
from ebbtide_master.api.views import event_message
from ebbtide_master.store.journal import StoredEvent, StoreError
from ebbtide_master.throttle.fair_queue import use_queue
from ebbtide_protos.v1 import client_pb2

from tests.master.world import Master, a_master, make_spec, refused

WAIT_S = 60.0


def array(tasks: int, **fields: Any) -> client_pb2.SubmitRequest:
    indices = [client_pb2.ArrayTask(index=index) for index in range(tasks)]
    return client_pb2.SubmitRequest(spec=make_spec(), user="eve", tasks=indices, **fields)


def named(*ids: str, **fields: Any) -> client_pb2.ListJobsRequest:
    return client_pb2.ListJobsRequest(job_ids=ids, **fields)


async def test_an_array_that_is_named_10_000_times_is_listed_once(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.ask.Submit(array(20))
        listed = (await master.ask.ListJobs(named(*["1"] * 10_000), timeout=WAIT_S)).jobs
        assert [job.job_id for job in listed] == [f"1.{index}" for index in range(20)]
        folded = (await master.ask.ListJobs(named(*["1", "1.3", "1.2-5"] * 3_000, folded=True), timeout=WAIT_S)).jobs
        assert [job.job_id for job in folded] == ["1"]


async def test_ids_that_stand_for_too_many_jobs_all_in_all_are_refused(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.ask.Submit(array(150))
        ids = [f"1.{low}-{high}" for low, high in combinations(range(150), 2)][:10_000]
        why = (grpc.StatusCode.INVALID_ARGUMENT, "job_ids: they stand for more than 200000 jobs")
        assert await refused(master.ask.ListJobs(named(*ids))) == why
        stream = master.ask.WatchJobs(client_pb2.WatchJobsRequest(job_ids=ids))
        assert await refused(stream.read()) == why


async def test_an_index_far_beyond_an_array_costs_nothing(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.ask.Submit(array(3))
        listed = (await master.ask.ListJobs(named("1.0-999999999", "1.2-1", "1.7"), timeout=WAIT_S)).jobs
        assert [job.job_id for job in listed] == ["1.0", "1.1", "1.2"]


@pytest.fixture
def shortest_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "BATCH_S", 0.0)
    monkeypatch.setattr(loops, "ANSWERS_S", 0.0)


async def meanwhile(master: Master, work: Any, look: Callable[[Cluster], int]) -> set[int]:
    """What another user saw while ``work`` was done."""

    async def as_eve() -> None:
        use_queue("eve")
        await work

    task, seen = asyncio.create_task(as_eve()), set[int]()
    async with asyncio.timeout(WAIT_S):
        while not task.done():
            seen.add(await master.service.loop.ask(look))
            await asyncio.sleep(0)
    await task
    return seen


def count(kind: str) -> Callable[[Cluster], int]:
    def look(cluster: Cluster) -> int:
        jobs = cluster.state.jobs.values()
        return sum(type(event).__name__ == kind for job in jobs for _, event in job.story)

    return look


CHANGES = {
    "Submit": ("JobSubmitted", array(60)),
    "Hold": ("HoldRequested", client_pb2.JobRequest(job_id="1")),
    "Suspend": ("SuspendRequested", client_pb2.JobRequest(job_id="1")),
    "Requeue": ("JobRequeued", client_pb2.RequeueRequest(job_id="1")),
    "Change": ("JobChanged", client_pb2.ChangeRequest(job_id="1", priority=7)),
    "Cancel": ("CancelRequested", client_pb2.CancelRequest(job_id="1")),
}


@pytest.mark.usefixtures("shortest_parts")
@pytest.mark.parametrize("verb", CHANGES)
async def test_others_are_answered_while_an_array_is_changed(tmp_path: Path, verb: str) -> None:
    async with a_master(tmp_path) as master:
        kind, request = CHANGES[verb]
        if verb != "Submit":
            await master.ask.Submit(array(60))
        if verb == "Requeue":
            await master.ask.Cancel(client_pb2.CancelRequest(job_id="1"))
        seen = await meanwhile(master, master.ask.__dict__[verb](request, timeout=WAIT_S), count(kind))
        assert len(seen) > 10  # else all of it was one piece
        assert await master.service.loop.ask(count(kind)) == 60


def listed(ids: list[str], *, folded: bool = False) -> client_pb2.ListJobsRequest:
    return client_pb2.ListJobsRequest(job_ids=ids, all=True, folded=folded)


@pytest.mark.usefixtures("shortest_parts")
async def test_others_are_answered_while_a_long_list_is_put_together(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.ask.Submit(array(60))
        rounds = 0

        def look(_: Cluster) -> int:
            nonlocal rounds
            rounds += 1
            return rounds

        await meanwhile(
            master, master.service.loop.ask_in_parts(lambda c: names_of(c, listed(["1.1-2"] * 9, folded=True))), look
        )
        before, ids = rounds, [f"1.{index}" for index in range(60)]
        await meanwhile(master, master.service.loop.ask_in_parts(lambda c: names_of(c, listed(ids))), look)
        assert rounds - before > 30


@pytest.mark.usefixtures("shortest_parts")
async def test_others_are_answered_while_a_long_story_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS_AT_ONCE", 300)
    checkpoint = CheckpointFacts(path="/checkpoints/1", step=1, bytes=1, verified=True)
    async with a_master(tmp_path) as master:
        job = await master.submit(hold=True)
        line = (master.store.last_time, e.CheckpointPublished(JobId(job), 1, checkpoint))
        master.store.append([line] * 1000).result()
        told, put_into_words, seen = list[client_pb2.Event](), 0, [0]

        def counted(line: StoredEvent) -> client_pb2.Event:
            nonlocal put_into_words
            put_into_words += 1
            return event_message(line)

        monkeypatch.setattr(journal, "event_message", counted)

        def look(_: Cluster) -> int:
            seen.append(put_into_words)
            return put_into_words

        async def story() -> None:
            told.extend((await master.ask.ShowStory(client_pb2.JobRequest(job_id=job), timeout=WAIT_S)).events)

        await meanwhile(master, story(), look)
        assert [event.kind for event in told] == ["JobSubmitted", *["CheckpointPublished"] * 1000]
        assert [event.sequence for event in told] == sorted({event.sequence for event in told})
        assert max(later - before for before, later in pairwise([*seen, 1001])) <= 50  # else others wait too long


def long_command(arguments: int, size: int, tasks: int, **fields: Any) -> client_pb2.SubmitRequest:
    indices = [client_pb2.ArrayTask(index=index, **fields) for index in range(tasks)]
    return client_pb2.SubmitRequest(spec=make_spec(command=["x" * size] * arguments), user="eve", tasks=indices)


@pytest.mark.parametrize("params", [{}, {"p": "1"}])
async def test_the_commands_of_an_array_are_bounded_all_in_all(tmp_path: Path, params: dict[str, str]) -> None:
    why = "--array: the commands and scripts of 10000 tasks come to more than the limit of 134217728 bytes in all"
    async with a_master(tmp_path) as master:
        request = long_command(16, 60_000, limits.MAX_ARRAY_TASKS, params=params)
        assert await refused(master.ask.Submit(request)) == (grpc.StatusCode.INVALID_ARGUMENT, why)
        assert (await master.ask.Submit(long_command(16, 60_000, 5, params=params))).job_id == "1"


async def test_a_command_of_more_arguments_than_linux_executes_is_refused(tmp_path: Path) -> None:
    why = "command: 65537 arguments are over the limit of 65536"
    async with a_master(tmp_path) as master:
        request = client_pb2.SubmitRequest(spec=make_spec(command=["x"] * 65_537), user="eve")
        assert await refused(master.ask.Submit(request)) == (grpc.StatusCode.INVALID_ARGUMENT, why)


async def test_a_list_has_the_beginning_of_a_long_command_and_one_job_is_shown_with_all_of_it(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.ask.Submit(long_command(16, 600, 2))
        stream = master.ask.WatchJobs(client_pb2.WatchJobsRequest())
        jobs = [*(await master.ask.ListJobs(named())).jobs, *(await master.ask.ListJobs(named(folded=True))).jobs]
        assert [list(job.spec.command) for job in [*jobs, await stream.read()]] == [["x" * 600, "…"]] * 4
        for id in ("1", "1.0"):
            assert len((await master.ask.ShowJob(client_pb2.JobRequest(job_id=id))).spec.command) == 16


async def test_so_much_text_is_written_at_a_time_that_others_do_not_wait_for_it(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        append, batches = master.store.append, list[int]()

        def counting(batch: list[Any]) -> Future[None]:
            batches.append(len(batch))
            return append(batch)

        master.store.append = counting  # type: ignore[method-assign]
        await master.ask.Submit(long_command(16, 60_000, 40))
        assert max(batches) <= 5
        assert sum(batches) == 40


@pytest.mark.usefixtures("shortest_parts")
async def test_what_was_accepted_of_an_array_survives_a_crash_and_the_same_request_completes_it(tmp_path: Path) -> None:
    request = array(9, operation_id="a-laptop-that-asks-again")
    async with a_master(tmp_path) as master:
        append, commits = master.store.append, 0

        def failing(batch: Any) -> Future[None]:
            nonlocal commits
            commits += 1
            if commits < 4:
                return append(batch)
            failed: Future[None] = Future()
            failed.set_exception(StoreError("the disk is gone"))
            return failed

        master.store.append = failing  # type: ignore[method-assign]
        assert (await refused(master.ask.Submit(request)))[0] is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(StoreError):
            await master.service.consumer
    async with a_master(tmp_path) as master:
        begun = [job.job_id for job in (await master.ask.ListJobs(named(all=True))).jobs]
        assert 0 < len(begun) < 9
        assert (await master.ask.Submit(request)).job_id == "1"
        assert (await master.ask.Submit(request)).job_id == "1"
        listed = [job.job_id for job in (await master.ask.ListJobs(named(all=True))).jobs]
        assert sorted(listed) == [f"1.{index}" for index in range(9)]
        assert (await master.ask.Submit(array(1))).job_id == "2"


async def test_looking_ahead_is_done_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()

    def copy(cluster: Cluster) -> Cluster:
        assert os.getpid() != here
        return fork(cluster)

    monkeypatch.setattr(explaining, "fork", copy)
    async with a_master(tmp_path, "priority") as master:
        await master.running(await master.agent("n1", 2), gpus=2, time_limit_s=3600.0)
        waiting = await master.submit()
        told = await master.ask.Explain(client_pb2.ExplainRequest(job_id=waiting, priority=1), timeout=WAIT_S)
        assert told.forecast.start_at > told.what_if.start_at > 0


async def test_what_takes_too_long_to_foresee_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "forecast", lambda *_: time.sleep(WAIT_S))
    monkeypatch.setattr(explaining, "ForkedCopies", lambda: ForkedCopies(longest_s=0.1))
    async with a_master(tmp_path) as master:
        await master.running(await master.agent("n1", 2), gpus=2)
        told = await master.ask.Explain(client_pb2.ExplainRequest(job_id=await master.submit()), timeout=WAIT_S)
        assert told.forecast.basis == "not foreseen: that took longer than 30 s"


def one(id: int, **spec: Any) -> e.JobSubmitted:
    return e.JobSubmitted(JobId(str(id)), JobSpec(command=("x",), workdir="/", **spec), "eve")


def test_of_very_many_who_wait_for_a_job_only_some_are_looked_at_at_once() -> None:
    cluster, now = Cluster(create_policy("fitgpp", {})), 1000.0
    for id in (1, 2):
        cluster.handle(one(id, begin_at=2000.0), now)
    for id in range(3, 1003):
        kind = AfterKind.OK if id % 2 else AfterKind.ANY
        cluster.handle(one(id, after=(Dependency(JobId("1"), kind),)), now)
    out, parts = cluster.handle(e.CancelRequested(JobId("1"), False, ""), now), list[int]()
    while any(isinstance(command, WakeAt) and command.time <= now for command in out):
        parts.append(sum(isinstance(command, Record) for command in out))
        out = cluster.handle(e.SchedulingDue(), now)
    assert max(parts) <= 101
    assert len(cluster.state.unfinished) == 501
    assert sum(job.admission is not None and job.admission.admitted for job in cluster.state.unfinished.values()) == 500
    assert sum(job.queued is not None for job in cluster.state.unfinished.values()) == 500


def test_of_very_many_whose_time_has_come_only_some_are_looked_at_at_once() -> None:
    cluster, now = Cluster(create_policy("fitgpp", {})), 1000.0
    for id in range(1, 1001):
        cluster.handle(one(id, begin_at=2000.0), now)
    queued = list[int]()
    for _ in range(20):
        cluster.handle(e.SchedulingDue(), 2000.0)
        queued.append(sum(job.queued is not None for job in cluster.state.unfinished.values()))
    assert queued[0] < 250
    assert queued[-1] == 1000
