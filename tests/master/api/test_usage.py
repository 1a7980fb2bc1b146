"""Usage as a client asks for it, while the master works on."""

import asyncio
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_core.views import ledger
from ebbtide_core.views.gpu_time import Usage
from ebbtide_master.throttle.concurrency import OnePerUser
from ebbtide_master.throttle.fair_queue import use_queue
from ebbtide_protos.v1 import client_pb2, usage_pb2

from tests.master.world import FREED, Master, a_master, refused, rest


async def ask(master: Master, by: tuple[str, ...] = ("user",), user: str = "") -> list[usage_pb2.UsageReply]:
    request = usage_pb2.UsageRequest(edges=(0.0, time.time() + 3600), by=by, user=user)
    return await rest(master.ask.Usage(request))


async def test_what_a_user_had_adds_up_whoever_was_master_meanwhile(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        job = await master.running(agent)
        await agent.report(job, 1, FREED)
        await master.becomes(job, "COMPLETED")
        [before] = await ask(master)
    async with a_master(tmp_path) as master:
        [after] = await ask(master)
    assert (before.accounts[0].key, before.accounts[0].jobs) == (["ann"], 1)
    assert before.accounts[0].computing_gpu_s > 0
    assert after.accounts == before.accounts
    assert (before.gpus.gpus, list(before.problems), list(after.problems)) == (2, [], [])
    assert before.gpus.allocated_gpu_s == pytest.approx(before.total.allocated_gpu_s)
    assert after.until < time.time() + 3600


async def test_what_a_user_had_is_counted_when_its_job_is_removed(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        job = await master.running(agent)
        await agent.report(job, 1, FREED)
        await master.becomes(job, "COMPLETED")
        [before] = await ask(master)
        await master.ask.Remove(client_pb2.JobRequest(job_id=job))
        [after] = await ask(master)
    assert after.accounts == before.accounts


async def test_jobs_have_lines_of_their_own(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.agent()
        for _ in range(5):
            await master.submit()
        [found] = await ask(master, by=("job", "pool"))
    assert [list(account.key) for account in found.accounts] == [[str(id), "default"] for id in range(1, 6)]
    assert (found.total.jobs, {account.jobs for account in found.accounts}) == (5, {1})


async def another_user_asks(master: Master) -> int:
    use_queue("somebody else")
    return await master.service.loop.ask(lambda cluster: len(cluster.state.jobs))


async def test_others_are_answered_while_many_jobs_are_added_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_up, answered, parts = ledger.Ledger.usage, asyncio.Event(), 0

    def add_up_until_answered(*arguments: Any) -> Generator[None, None, Usage]:
        nonlocal parts
        adding = add_up(*arguments)
        while True:
            try:
                next(adding)
            except StopIteration as last:
                found: Usage = last.value
                return found
            parts += 1
            yield
            while not answered.is_set():
                yield

    monkeypatch.setattr(ledger, "JOBS_AT_ONCE", 1)
    monkeypatch.setattr(ledger.Ledger, "usage", add_up_until_answered)
    async with a_master(tmp_path) as master:
        for _ in range(50):
            await master.submit()
        adding_up = asyncio.create_task(ask(master, by=("job",)))
        while not parts:
            await asyncio.sleep(0)
        assert await asyncio.create_task(another_user_asks(master)) == 50
        answered.set()
        [found] = await adding_up
    assert found.total.jobs == 50
    assert parts >= 50


async def test_only_the_jobs_of_the_user_who_is_named_are_counted(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.submit()
        assert (await ask(master, user="bob"))[-1].total.jobs == 0
        assert (await ask(master, user="ann"))[-1].total.jobs == 1


async def test_more_accounts_than_a_master_can_hold_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_master(tmp_path) as master:
        for _ in range(3):
            await master.submit()
        monkeypatch.setattr(ledger, "MOST_ACCOUNTS", 2)
        assert await refused(ask(master, by=("job",))) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "--by: comes to more than 2 lines: ask for a shorter time, or for less",
        )


async def test_one_of_each_user_and_a_few_in_all_are_added_up_at_a_time() -> None:
    turns, here, most = OnePerUser(2), list[str](), list[list[str]]()

    async def one(user: str) -> None:
        async with turns.turn(user):
            here.append(user)
            most.append(sorted(here))
            await asyncio.sleep(0)
            here.remove(user)

    await asyncio.gather(*(one(user) for user in ("ann", "ann", "bob", "cid")))
    assert len(most) == 4
    assert all(len(users) == len(set(users)) <= 2 for users in most)


@pytest.mark.parametrize(
    "wrong", [{"edges": (1.0,)}, {"edges": (2.0, 1.0)}, {"edges": (0.0, float("nan"))}, {"by": ("moon",)}]
)
async def test_a_question_without_a_meaning_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async with a_master(tmp_path) as master:
        request = usage_pb2.UsageRequest(**({"edges": (0.0, 1.0)} | wrong))
        code, words = await refused(rest(master.ask.Usage(request)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert words.startswith(("--since: ", "--by: "))
