"""Answers who had which GPU from when to when, from the history and outside the loop's thread (the timeline)."""

import asyncio
import math
import sqlite3
from typing import Any, Final

from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError
from ebbtide_protos.v1 import timeline_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.request_checks import check_user, check_words
from ebbtide_master.history.file import DAY_S, REMEDY
from ebbtide_master.history.heat import MOST_PARTS
from ebbtide_master.history.reading import MOST_LANES, DrawnUpTo, read_timeline
from ebbtide_master.identity.caller import caller
from ebbtide_master.throttle.concurrency import OnePerUser

LONGEST_WINDOW_S: Final = 31 * DAY_S
MOST_BUCKETS: Final = 10_000
MAX_POOL_LENGTH: Final = 64
_WITH_HEAT: Final = (timeline_pb2.TIMELINE_LANES_POOLS, timeline_pb2.TIMELINE_LANES_NODES)
READ_AT_ONCE: Final = 2
"""Windows that are read at a time, for all users."""


class TimelineService:
    """Answers from the history, which it only reads; the master's loop has no part in it."""

    def __init__(self, master: Context) -> None:
        self._clock = master.clock
        self._history = master.history
        self._turns = OnePerUser(READ_AT_ONCE)

    async def QueryTimeline(
        self, request: timeline_pb2.QueryTimelineRequest, context: Any
    ) -> timeline_pb2.QueryTimelineReply:
        """Return the lanes of a window; a history that cannot be read is said in the reply, and is no error."""
        _check(request)
        async with self._turns.turn(caller().user):
            return await asyncio.to_thread(self._reply, request)

    def _reply(self, request: timeline_pb2.QueryTimelineRequest) -> timeline_pb2.QueryTimelineReply:
        progress, now = self._history.progress, self._clock.now()
        lags = progress.done < 1.0 or bool(progress.problem)
        try:
            reply = read_timeline(self._history.path, request, DrawnUpTo(now, lags))
        except (sqlite3.Error, OSError) as error:
            problem = f"{self._history.path} cannot be read ({error}): {REMEDY}"
            reply = timeline_pb2.QueryTimelineReply(edge=now, problem=problem if progress.done >= 1.0 else "")
        reply.done, reply.problem = progress.done, progress.problem or reply.problem
        return reply


def _check(request: timeline_pb2.QueryTimelineRequest) -> None:
    """Raise `SpecError` for what no query can mean, or for more than one may ask for."""
    for name in ("since", "until"):
        if not 0.0 <= getattr(request, name) < math.inf:
            raise SpecError(name, "is not a time in Unix seconds")
    if not request.since < request.until <= request.since + LONGEST_WINDOW_S:
        raise SpecError("until", f"is not after 'since', and within {LONGEST_WINDOW_S / DAY_S:.0f} days of it")
    if request.lanes not in timeline_pb2.TimelineLanes.values():
        raise SpecError("lanes", "there are only those of GPUs, jobs, pools and nodes")
    if request.lanes in _WITH_HEAT and not 0 < request.buckets <= MOST_PARTS:
        raise SpecError("buckets", f"lanes of pools and nodes have 1 to {MOST_PARTS}")
    if request.lanes == timeline_pb2.TIMELINE_LANES_POOLS and request.node:
        raise SpecError("node", "lanes of pools are those of all nodes")
    if request.limit > MOST_LANES:
        raise SpecError("limit", f"{request.limit} lanes are over the limit of {MOST_LANES}")
    if request.buckets > MOST_BUCKETS:
        raise SpecError("buckets", f"{request.buckets} are over the limit of {MOST_BUCKETS}")
    check_words("node", request.node, limits.MAX_NODE_NAME_LENGTH)
    check_words("pool", request.pool, MAX_POOL_LENGTH)
    check_user(request.of_user)
