"""Asks the master for windows of the timeline, once for all who look at the same, and not again before a while."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ebbtide_web.reach import Master, MasterRefusedError
from ebbtide_web.timeline_page import BUCKETS, WantedTimeline, timeline_facts

LEAST_KEPT_S: Final = 3.0
MOST_KEPT_S: Final = 60.0
"""An answer is kept while less than a point of the drawing has gone by, within these bounds."""
REST: Final = 20
"""The same as a multiple of the time that it took."""


@dataclass(slots=True)
class _Kept:
    """A question that is being answered, or was, and from when on it is asked anew."""

    task: asyncio.Task[dict[str, Any]]
    until: float = 0.0


class TimelineAnswers:
    """The facts of timelines by what was asked. Everybody may see them, so that ``token`` may be anybody's."""

    def __init__(self, master: Master, token: Callable[[], str], now: Callable[[], float] = time.time) -> None:
        self._master = master
        self._token = token
        self._now = now
        self._kept: dict[WantedTimeline, _Kept] = {}

    async def answer(self, wanted: WantedTimeline) -> tuple[dict[str, Any], float]:
        """Return the facts, and after how many seconds to ask again. Raises `AwayError` and `MasterRefusedError`."""
        kept = self._kept.get(wanted)
        if kept is None or _is_over(kept):
            for other in [other for other, each in self._kept.items() if _is_over(each)]:
                del self._kept[other]
            kept = self._kept[wanted] = self._ask(wanted)
        facts = await asyncio.shield(kept.task)
        return facts, max(0.1, kept.until - time.monotonic())

    async def close(self) -> None:
        """Give up what is being asked."""
        tasks = [kept.task for kept in self._kept.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ask(self, wanted: WantedTimeline) -> _Kept:
        async def ask() -> dict[str, Any]:
            began, now = time.monotonic(), self._now()
            since, until = bounds = wanted.bounds(now)
            point_s = min(MOST_KEPT_S, max(LEAST_KEPT_S, (until - since) / BUCKETS))
            try:
                reply = await self._master.call("QueryTimeline", wanted.request(now), self._token())
                kept.until = _kept_until(began, point_s)
            except MasterRefusedError:  # such as that there is too much in the window, which took long to find out
                kept.until = _kept_until(began, point_s)
                raise
            return timeline_facts(wanted, bounds, reply)

        kept = _Kept(asyncio.create_task(ask(), name="timeline"))
        kept.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # perhaps nobody waits any more
        return kept


def _kept_until(began: float, point_s: float) -> float:
    ended = time.monotonic()
    return ended + max(point_s, REST * (ended - began))


def _is_over(kept: _Kept) -> bool:
    return kept.task.done() and time.monotonic() >= kept.until
