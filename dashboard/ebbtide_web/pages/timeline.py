"""The page of the timeline: who had which GPU, and what jobs did; of a large cluster, how much of each pool was held.

The master is asked for a window once for all who look at the same, and not again before a while has passed.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ebbtide_protos.v1 import timeline_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.access.sessions import Session
from ebbtide_web.answers import Templates
from ebbtide_web.board.picture import FEW_GPUS
from ebbtide_web.board.shared_page import encoded
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.pages.page import Page, PageRoute
from ebbtide_web.pages.query import moment, page_number, words
from ebbtide_web.reach import Master, MasterRefusedError

LEAST_KEPT_S: Final = 3.0
MOST_KEPT_S: Final = 60.0
"""An answer is kept while less than a point of the drawing has gone by, within these bounds."""
REST: Final = 20
"""The same as a multiple of the time that it took."""
WINDOWS: Final[Mapping[str, float]] = {"hour": 3600.0, "6h": 6 * 3600.0, "day": 86_400.0, "week": 7 * 86_400.0}
"""Seconds of each window that ends now."""
STEPS: Final = 12
"""A window that ends now stays where it is while time goes through the last of so many parts of it."""
SHORTEST_S: Final = 60.0
LONGEST_S: Final = 31 * 86_400.0
PAGE: Final = 100
"""Lanes of one page."""
BUCKETS: Final = 800
"""Parts of the window, about as many as the drawing has points; what is narrower is merged."""
PARTS: Final = 240
"""Parts of the window in a strip of a pool or node."""
LANES: Final = {
    "gpu": timeline_pb2.TIMELINE_LANES_GPUS,
    "job": timeline_pb2.TIMELINE_LANES_JOBS,
    "pool": timeline_pb2.TIMELINE_LANES_POOLS,
    "node": timeline_pb2.TIMELINE_LANES_NODES,
}
STRIPS: Final = ("pool", "node")
"""Lanes that say how many GPUs were held, and not by which jobs."""
_DOING: Final = {
    int(number): name.removeprefix("TIMELINE_DOING_").lower() for name, number in timeline_pb2.TimelineDoing.items()
}


class TimelinePage(Page):
    """Shows the timeline."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        super().__init__(dashboard, templates)
        self.answers = TimelineAnswers(dashboard.master, dashboard.settings.token)

    def routes(self) -> Sequence[PageRoute]:
        """Return the routes of the page."""
        return PageRoute("/timeline", self.show), PageRoute("/stream/timeline", self.stream)

    async def show(self, request: Request, session: Session) -> Response:
        """Show the page."""
        by = "pool" if self._dashboard.feed.picture.gpu_count > FEW_GPUS else "gpu"
        wanted = WantedTimeline.read(request.query_params)
        return self._templates.page("timeline.html", session, wanted=wanted, by=by)

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream what is drawn whenever it is another than before."""
        wanted = WantedTimeline.read(request.query_params)

        async def ask() -> tuple[str, float]:
            facts, pause_s = await self.answers.answer(wanted)
            return encoded(facts), pause_s

        return streams.again(session, lambda: streams.changes(session, "timeline", ask))

    async def close(self) -> None:
        """Give up what is being asked."""
        await self.answers.close()


@dataclass(frozen=True, slots=True)
class WantedTimeline:
    """Which timeline the page shows, as its address says it; viewers with the same share one answer.

    It is the last ``window``, or from ``since`` to ``until`` in Unix seconds if these are given.
    """

    window: str = "6h"
    lanes: str = "gpu"
    node: str = ""
    user: str = ""
    pool: str = ""
    since: float = 0.0
    until: float = 0.0
    page: int = 0

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "WantedTimeline":
        """Read the query of an address; what makes no sense is as if it were not there."""
        since, until = moment(query, "since"), moment(query, "until")
        chosen = since > 0.0 and SHORTEST_S <= until - since <= LONGEST_S
        return cls(
            window=query.get("window", "") if query.get("window") in WINDOWS else "6h",
            lanes=query.get("by", "") if query.get("by") in LANES else "gpu",
            node=words(query, "node"),
            user=words(query, "user"),
            pool=words(query, "pool"),
            since=since if chosen else 0.0,
            until=until if chosen else 0.0,
            page=page_number(query),
        )

    @property
    def live(self) -> bool:
        """Whether it ends now."""
        return self.until == 0.0

    def bounds(self, now: float) -> tuple[float, float]:
        """Return where it begins and ends, in Unix seconds; a window that ends now has room for what comes."""
        if not self.live:
            return self.since, self.until
        length = WINDOWS[self.window]
        step = length / STEPS
        end = (math.floor(now / step) + 1) * step
        return end - length, end

    def request(self, now: float) -> timeline_pb2.QueryTimelineRequest:
        """Return the question to the master."""
        since, until = self.bounds(now)
        return timeline_pb2.QueryTimelineRequest(
            since=since,
            until=until,
            lanes=LANES[self.lanes],
            node="" if self.lanes == "pool" else self.node,
            of_user=self.user,
            pool=self.pool,
            buckets=PARTS if self.lanes in STRIPS else BUCKETS,
            first=self.page * PAGE,
            limit=PAGE,
        )


def timeline_facts(
    wanted: WantedTimeline, bounds: tuple[float, float], reply: timeline_pb2.QueryTimelineReply
) -> dict[str, Any]:
    """Return what the page draws; the ``edge`` is None if what goes on is drawn up to now."""
    since, until = bounds
    lags = reply.done < 1.0 or bool(reply.problem)
    return {
        "by": wanted.lanes,
        "user": wanted.user,
        "parts": PARTS if wanted.lanes in STRIPS else None,
        "live": wanted.live,
        "since": since,
        "until": until,
        "edge": reply.edge if lags else None,
        "known_since": reply.known_since if reply.known_since > since else None,
        "done": math.floor(100 * reply.done) / 100,
        "problem": reply.problem,
        "lanes": [_lane(lane) for lane in reply.lanes],
        "total": reply.total,
        "page": wanted.page,
        "pages": max(1, -(-reply.total // PAGE)),
    }


def _lane(lane: timeline_pb2.TimelineLane) -> dict[str, Any]:
    return {
        "node": lane.node,
        "gpu": lane.gpu_index,
        "pool": lane.pool,
        "job": lane.job_id,
        "user": lane.user,
        "name": lane.name,
        "shortened": lane.shortened,
        "spans": [_span(span) for span in lane.spans],
        "gpus": lane.gpus,
        "heat": _heat(lane.heat) if lane.HasField("heat") else None,
    }


def _heat(heat: timeline_pb2.TimelineHeat) -> dict[str, Any]:
    """Return per cent of the GPUs that were there in each part of the window; None where there were none."""

    def shares(numbers: Sequence[float]) -> list[int | None]:
        pairs = zip(numbers, heat.present, strict=True)
        return [round(100 * number / there) if there > 0.0 else None for number, there in pairs]

    return {
        "held": shares(heat.held),
        "foreign": shares(heat.foreign),
        "unavailable": shares(heat.unavailable),
    }


def _span(span: timeline_pb2.TimelineSpan) -> dict[str, Any]:
    return {
        "start": round(span.start, 1),
        "end": None if span.open else round(span.end, 1),
        "doing": _DOING[span.doing],
        "job": span.job_id,
        "user": span.user,
        "name": span.name,
        "attempt": span.attempt,
        "gpus": round(span.gpus, 3),
        "why": span.why,
        "count": span.count,
    }


# --- asking the master ---


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
