"""Statuses of attempts that come faster than the master commits."""

import asyncio
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_core.events import AttemptExited, Event
from ebbtide_master.nodes import agents

from tests.master.world import DEADLINE_S, EXITED, FREED, RUNNING, Master, a_master


class Commits:
    """The commits of a master from now on; the first one is held until it is let go."""

    def __init__(self, master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[list[Event]] = []
        self.statuses = 0
        self.held = Future[None]()
        self._append, self._bounded = master.store.append, agents.bounded
        monkeypatch.setattr(master.store, "append", self._commit)
        monkeypatch.setattr(agents, "bounded", self._count)

    def _commit(self, batch: Any) -> Future[None]:
        stamped = list(batch)
        self.events.append([event for _, event in stamped])
        done = self._append(stamped)
        return done if len(self.events) > 1 else self.held

    def _count(self, message: Any) -> None:
        self._bounded(message)
        self.statuses += message.HasField("status")

    async def until(self, statuses: int) -> None:
        """Wait until so many statuses were read."""
        async with asyncio.timeout(DEADLINE_S):
            while self.statuses < statuses:
                await asyncio.sleep(0.001)


async def test_statuses_that_come_during_a_commit_are_committed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=4)
        jobs = [await master.running(agent) for _ in range(4)]
        commits = Commits(master, monkeypatch)
        for job in jobs:
            await agent.report(job, 1, EXITED)
        await commits.until(4)
        commits.held.set_result(None)
        for job in jobs:
            await agent.report(job, 1, FREED)
            await master.becomes(job, "COMPLETED")
    ended = [sum(isinstance(event, AttemptExited) for event in commit) for commit in commits.events]
    assert sum(ended) == 4
    assert max(ended) >= 3


async def test_no_more_statuses_are_read_ahead_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=2)
        job, other = [await master.running(agent) for _ in range(2)]
        commits = Commits(master, monkeypatch)
        await agent.report(job, 1, EXITED)
        await commits.until(1)
        for _ in range(3 * agents.TOGETHER):
            await agent.report(other, 1, RUNNING)
        await commits.until(agents.TOGETHER)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert commits.statuses <= agents.TOGETHER + 2
        commits.held.set_result(None)
        await commits.until(1 + 3 * agents.TOGETHER)
        await agent.report(job, 1, FREED)
        await master.becomes(job, "COMPLETED")


async def test_all_statuses_before_the_end_of_a_stream_are_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=4)
        jobs = [await master.running(agent) for _ in range(4)]
        commits = Commits(master, monkeypatch)
        for job in jobs:
            await agent.report(job, 1, FREED)
        await agent.fall_silent()
        commits.held.set_result(None)
        for job in jobs:
            await master.becomes(job, "COMPLETED")
        assert await agent.ends() is grpc.StatusCode.OK


async def test_a_status_that_cannot_be_taken_in_ends_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("it broke")

    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        monkeypatch.setattr(agents, "facts_of_status", fails)
        await agent.report(job, 1, EXITED)
        assert await agent.ends() is grpc.StatusCode.INTERNAL
        assert "ValueError" in await agent.details()
