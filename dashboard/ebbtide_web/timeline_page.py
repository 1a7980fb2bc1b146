"""Which window of the timeline its page shows, and the facts that it draws. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ebbtide_protos.v1 import timeline_pb2

from ebbtide_web.listed import moment, page_number, words

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


@dataclass(frozen=True, slots=True)
class WantedTimeline:
    """Which timeline a page shows, as its address says it; viewers with the same share one answer.

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
