"""Asks the master for sums of GPU time, once for all who look at the same, and not again before a while has passed."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from ebbtide_protos.v1 import usage_pb2

from ebbtide_web.reach import Master, MasterRefusedError
from ebbtide_web.usage_page import WantedUsage

KEPT_S: Final = 60.0
"""Seconds for which an answer is kept, at least."""
REST: Final = 20
"""The same as a multiple of the time that it took, so that asking takes a twentieth of the time at most."""


@dataclass(slots=True)
class UsageSums:
    """The two sums of one window, and what they were asked for."""

    edges: list[float]
    by_key: usage_pb2.UsageReply
    by_day: usage_pb2.UsageReply


@dataclass(slots=True)
class _Asked:
    """A question that is being answered, or was; ``done`` is how much of it is, from 0 to 1."""

    task: asyncio.Task[UsageSums]
    until: float = 0.0
    done: float = 0.0
    news: asyncio.Event = field(default_factory=asyncio.Event)


class UsageLedger:
    """The answers by what was asked. Everybody may see them, so that ``token`` may be anybody's."""

    def __init__(self, master: Master, token: Callable[[], str], now: Callable[[], float] = time.time) -> None:
        self._master = master
        self._token = token
        self._now = now
        self._asked: dict[WantedUsage, _Asked] = {}

    async def replies(self, wanted: WantedUsage) -> AsyncGenerator[float | UsageSums, None]:
        """Yield how much is done, from 0 to 1, and at last the answer. Raises `AwayError` and `MasterRefusedError`."""
        asked = self._asked.get(wanted)
        if asked is None or self._is_over(asked):
            asked = self._asked[wanted] = self._ask(wanted)
        while not asked.task.done():
            yield asked.done
            news = asyncio.ensure_future(asked.news.wait())
            try:
                await asyncio.wait({news, asked.task}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
        yield asked.task.result()

    async def answer(self, wanted: WantedUsage) -> UsageSums:
        """Return the answer. Raises `AwayError` and `MasterRefusedError`."""
        async with aclosing(self.replies(wanted)) as replies:
            async for found in replies:
                if isinstance(found, UsageSums):
                    return found
        raise AssertionError("the last reply is the answer")

    def wait_s(self, wanted: WantedUsage) -> float:
        """Return the seconds until the answer is asked for anew."""
        asked = self._asked.get(wanted)
        return 0.0 if asked is None else max(0.0, asked.until - time.monotonic())

    async def close(self) -> None:
        """Give up what is being asked."""
        tasks = [asked.task for asked in self._asked.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _is_over(self, asked: _Asked) -> bool:
        if not asked.task.done():
            return False
        failed = asked.task.cancelled() or asked.task.exception() is not None
        return failed or time.monotonic() >= asked.until

    def _ask(self, wanted: WantedUsage) -> _Asked:
        async def ask() -> UsageSums:
            began = time.monotonic()
            now = self._now()
            by_key, by_day = wanted.requests(now)
            found = UsageSums(
                wanted.edges(now), await self._read(by_key, asked, 0.0), await self._read(by_day, asked, 0.5)
            )
            asked.until = time.monotonic() + max(KEPT_S, REST * (time.monotonic() - began))
            return found

        asked = _Asked(asyncio.create_task(ask(), name="usage"))
        asked.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # perhaps nobody waits any more
        return asked

    async def _read(self, request: usage_pb2.UsageRequest, asked: _Asked, before: float) -> usage_pb2.UsageReply:
        last: usage_pb2.UsageReply | None = None
        async with aclosing(self._master.stream("Usage", request, self._token())) as replies:
            async for last in replies:
                asked.done = before + last.done / 2
                news, asked.news = asked.news, asyncio.Event()
                news.set()
        if last is None or not last.HasField("total"):
            raise MasterRefusedError("the master gave no sums", 502)
        return last
