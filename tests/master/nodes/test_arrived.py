"""A stream that is read ahead."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from ebbtide_core.events import AttemptExited, Event
from ebbtide_master.nodes import agents
from ebbtide_master.nodes.arrived import arrived

from tests.master.world import DEADLINE_S, EXITED, FREED, a_master


class Stream:
    """Gives what was put in; an error ends it, and so does None."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self._coming: asyncio.Queue[int | Exception | None] = asyncio.Queue()

    def put(self, *messages: int | Exception | None) -> None:
        for message in messages:
            self._coming.put_nowait(message)

    async def __aiter__(self) -> AsyncIterator[int]:
        while (message := await self._coming.get()) is not None:
            if isinstance(message, Exception):
                raise message
            self.given.append(message)
            yield message


async def until(stream: Stream, given: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while len(stream.given) < given:
            await asyncio.sleep(0)


async def test_a_message_is_yielded_as_soon_as_it_comes() -> None:
    stream = Stream()
    async with aclosing(arrived(stream, 4)) as batches:
        for message in (1, 2):
            stream.put(message)
            assert await anext(batches) == [message]


async def test_what_came_meanwhile_is_yielded_together_and_in_its_order() -> None:
    stream = Stream()
    async with aclosing(arrived(stream, 4)) as batches:
        stream.put(1)
        await anext(batches)
        stream.put(2, 3, 4)
        await until(stream, 4)
        assert await anext(batches) == [2, 3, 4]


async def test_no_more_is_read_ahead_than_allowed() -> None:
    stream = Stream()
    async with aclosing(arrived(stream, 2)) as batches:
        stream.put(*range(10))
        assert await anext(batches) == [0, 1]
        await until(stream, 5)
        for _ in range(20):
            await asyncio.sleep(0)
        assert stream.given == [0, 1, 2, 3, 4]  # the last of these waits for room
        assert await anext(batches) == [2, 3]


async def test_what_is_taken_in_at_once_is_not_yielded() -> None:
    stream, taken = Stream(), list[int]()

    def at_once(message: int) -> bool:
        taken.extend([message] * (message % 2))
        return message % 2 == 1

    stream.put(1, 3, 4, None)
    assert ([messages async for messages in arrived(stream, 4, at_once)], taken) == ([[4]], [1, 3])


async def test_nothing_is_taken_in_at_once_before_what_came_earlier_is_taken_in() -> None:
    stream, taken = Stream(), list[int]()

    def at_once(message: int) -> bool:
        taken.append(message)
        return message != 1

    async with aclosing(arrived(stream, 4, at_once)) as batches:
        stream.put(1, 2)
        assert await anext(batches) == [1, 2]
        stream.put(3)
        await until(stream, 3)
        assert await anext(batches) == [3]
        later = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        stream.put(4, None)
        await asyncio.wait([later])
        assert isinstance(later.exception(), StopAsyncIteration)
    assert taken == [1, 4]


@pytest.mark.parametrize("last", [None, ValueError("it broke")])
async def test_all_that_came_before_the_end_is_yielded(last: Exception | None) -> None:
    stream, seen = Stream(), list[int]()
    stream.put(*range(7), last)
    try:
        async for messages in arrived(stream, 3):
            seen += messages
        ended = None
    except ValueError as error:
        ended = error
    assert (seen, ended) == (list(range(7)), last)


async def test_nothing_is_read_any_more_once_nobody_takes_it() -> None:
    stream = Stream()
    stream.put(1)
    async with aclosing(arrived(stream, 4)) as batches:
        await anext(batches)
    await asyncio.sleep(0)
    stream.put(2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert stream.given == [1]


async def test_reports_of_an_agent_that_come_during_a_commit_are_committed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, commits, held = 0, list[list[Event]](), Future[None]()

    async def counted(stream: Any) -> AsyncIterator[Any]:
        nonlocal read
        async for message in stream:
            read += message.HasField("status")
            yield message

    monkeypatch.setattr("ebbtide_master.loop.BATCH_S", 60.0)
    monkeypatch.setattr(agents, "arrived", lambda stream, *how: arrived(counted(stream), *how))
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=4)
        jobs = [await master.running(agent) for _ in range(4)]
        append = master.store.append

        def hold_the_first(batch: Any) -> Future[None]:
            events = list(batch)
            commits.append([event for _, event in events])
            done = append(events)
            return done if len(commits) > 1 else held

        monkeypatch.setattr(master.store, "append", hold_the_first)
        already = read
        for job in jobs:
            await agent.report(job, 1, EXITED)
        async with asyncio.timeout(DEADLINE_S):
            while read < already + len(jobs):
                await asyncio.sleep(0.001)
        held.set_result(None)
        for job in jobs:
            await agent.report(job, 1, FREED)
            await master.becomes(job, "COMPLETED")
    ended = [sum(isinstance(event, AttemptExited) for event in commit) for commit in commits]
    assert ended[:2] == [1, 3]
