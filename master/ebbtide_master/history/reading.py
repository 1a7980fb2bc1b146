"""Reads windows of the history for `QueryTimeline`, and merges what is too narrow to be seen. Blocks."""

import re
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ebbtide_core.model.spec_error import SpecError
from ebbtide_core.model.types import WHOLE
from ebbtide_protos.v1 import timeline_pb2

from ebbtide_master.history.file import reached_in
from ebbtide_master.history.heat import HeatStrips
from ebbtide_master.history.window import window_sql
from ebbtide_master.store.sqlite_file import reading

MOST_LANES: Final = 200
MOST_SPANS: Final = 20_000
"""Spans of one reply; each lane has its part of them, and what is narrow in it is merged until they suffice."""
QUERY_S: Final = 5.0
"""Seconds after which a query that is not answered is given up."""
STEPS_BETWEEN_LOOKS: Final = 100_000
"""Steps of SQLite after which it is asked whether the time is over; they take about a millisecond."""
_DOING: Final = {
    name.removeprefix("TIMELINE_DOING_").lower(): number for name, number in timeline_pb2.TimelineDoing.items()
}
_SEVERAL: Final = timeline_pb2.TIMELINE_DOING_SEVERAL

_HELD: Final = """
SELECT 1 AS layer, h.start AS start, {end} AS end, h.end >= {goes_on} AS open, s.doing AS doing, s.job AS job,
       j.user AS user, j.name AS name, s.attempt AS attempt, h.share AS share, h.share AS gpus, s.why AS why
FROM held AS h JOIN spans AS s ON s.key = h.key JOIN jobs AS j ON j.job = s.job
WHERE h.node = :node AND h.gpu = :gpu AND {overlaps} AND (:user = '' OR j.user = :user)
"""
_REST: Final = """
SELECT 0, h.start, {end}, h.end >= {goes_on}, h.rest, '', '', '', 0, {whole}, {whole}, '' FROM gpus AS h
WHERE h.node = :node AND h.gpu = :gpu AND {overlaps} AND h.rest <> 'idle'
"""
_BOOKED: Final = """
SELECT 2, h.start, h.end, 0, 'booked', h.booking, h.user, '', 0, {whole}, {whole}, h.why FROM booked AS h
WHERE h.node = :node AND h.gpu = :gpu AND {overlaps} AND (:user = '' OR h.user = :user)
"""
_OF_JOB: Final = """
SELECT h.share IS NOT NULL AS layer, h.start AS start, {end} AS end, h.end >= {goes_on} AS open, h.doing AS doing,
       h.job AS job, j.user AS user, j.name AS name, h.attempt AS attempt, coalesce(h.share, {whole}) AS share,
       coalesce(h.share, 0) AS gpus, h.why AS why
FROM spans AS h JOIN jobs AS j ON j.job = h.job
WHERE h.job = :job AND h.end > :since AND h.start < :until
"""
_INSIDE: Final = "(min(end, :until) - max(start, :since)) * share"
_WIDE: Final = """
SELECT start, end, open, doing, job, user, name, attempt, gpus, why, 1, {inside} FROM ({lane})
WHERE end > :since AND end - start >= :bucket ORDER BY start, layer LIMIT :most
"""
_NARROW: Final = """
SELECT min(start), max(end), max(open), iif(min(doing) = max(doing), min(doing), 'several'),
       iif(min(job) = max(job), min(job), ''), iif(min(user) = max(user), min(user), ''),
       iif(min(job) = max(job), min(name), ''), iif(min(job) = max(job), max(attempt), 0), max(gpus),
       iif(count(*) = 1, min(why), ''), count(*), sum({inside})
FROM ({lane}) WHERE end > :since AND end - start < :bucket
GROUP BY layer, CAST((max(start, :since) - :since) / :bucket AS INTEGER) ORDER BY 1 LIMIT :most
"""
_GPU_LANES: Final = """
SELECT h.node, h.gpu, max(h.number), h.pool FROM gpus AS h
WHERE {overlaps} AND (:node = '' OR h.node = :node) AND (:pool = '' OR h.pool = :pool) GROUP BY h.node, h.gpu
"""
_NODE_LANES: Final = window_sql("""
SELECT h.node, max(h.pool), count(DISTINCT h.gpu) FROM gpus AS h
WHERE {overlaps} AND (:node = '' OR h.node = :node) AND (:pool = '' OR h.pool = :pool) GROUP BY h.node
""")
_POOL_LANES: Final = window_sql("""
SELECT h.pool, count(DISTINCT h.node || ' ' || h.gpu) FROM gpus AS h
WHERE {overlaps} AND (:pool = '' OR h.pool = :pool) GROUP BY h.pool
""")
_GPUS_OF_USER: Final = """
SELECT DISTINCT g.node, g.gpu FROM spans AS h JOIN jobs AS j ON j.job = h.job JOIN held AS g ON g.key = h.key
WHERE {overlaps} AND j.user = :user
"""
_JOBS: Final = """
FROM spans AS h JOIN jobs AS j ON j.job = h.job
WHERE {overlaps} AND (:user = '' OR j.user = :user) AND (:pool = '' OR h.pool = :pool)
      AND (:node = '' OR EXISTS (SELECT 1 FROM held AS g WHERE g.key = h.key AND g.node = :node))
"""


_LANE_OF_GPU: Final = " UNION ALL ".join(map(window_sql, (_HELD, _REST, _BOOKED)))
_LANE_OF_JOB: Final = window_sql(_OF_JOB)


@dataclass(frozen=True, slots=True)
class DrawnUpTo:
    """Up to where spans that go on are drawn, in Unix seconds: ``now``, or less while the history lags behind it."""

    now: float
    lags: bool


def read_timeline(
    path: Path, request: timeline_pb2.QueryTimelineRequest, edge: DrawnUpTo
) -> timeline_pb2.QueryTimelineReply:
    """Return the lanes that ``request`` asks for. Raises `sqlite3.Error`, or `SpecError` if it would take too long."""
    ends = time.monotonic() + QUERY_S
    with closing(reading(path)) as db:
        db.set_progress_handler(lambda: time.monotonic() > ends, STEPS_BETWEEN_LOOKS)
        try:
            db.execute("BEGIN")  # so that all of a reply is of one moment
            return _Window(db, request, edge).reply()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise SpecError("since", "there is too much in this window: choose a shorter one") from None
            raise


class _Window:
    def __init__(self, db: sqlite3.Connection, request: timeline_pb2.QueryTimelineRequest, edge: DrawnUpTo) -> None:
        self._db = db
        self._request = request
        try:
            reached = reached_in(db)
        except ValueError as error:
            raise sqlite3.DatabaseError(str(error)) from None
        self._edge = reached.time if edge.lags else edge.now
        self._known_since = reached.known_since
        self._asked: dict[str, Any] = {
            "since": request.since, "until": request.until, "edge": self._edge,
            "node": request.node, "user": request.of_user, "pool": request.pool,
        }  # fmt: skip

    def reply(self) -> timeline_pb2.QueryTimelineReply:
        reply = timeline_pb2.QueryTimelineReply(edge=self._edge, known_since=self._known_since)
        first, limit = self._request.first, self._request.limit or MOST_LANES
        match self._request.lanes:
            case timeline_pb2.TIMELINE_LANES_JOBS:
                reply.total, lanes = self._jobs(first, limit)
                self._fill_all(lanes)
            case timeline_pb2.TIMELINE_LANES_POOLS:
                reply.total, lanes = self._pools(first, limit)
                self._heat().fill_pools(lanes)
            case timeline_pb2.TIMELINE_LANES_NODES:
                reply.total, lanes = self._nodes(first, limit)
                self._heat().fill_nodes(lanes)
            case _:
                reply.total, lanes = self._gpus(first, limit)
                self._fill_all(lanes)
        reply.lanes.extend(lanes)
        return reply

    def _heat(self) -> HeatStrips:
        return HeatStrips(self._db, self._asked, self._request.buckets)

    # --- lanes ---

    def _gpus(self, first: int, limit: int) -> tuple[int, list[timeline_pb2.TimelineLane]]:
        found = self._all(window_sql(_GPU_LANES))
        if self._request.of_user:
            theirs = set(self._all(window_sql(_GPUS_OF_USER)))
            found = [row for row in found if row[:2] in theirs]
        found.sort(key=lambda row: (_natural(row[0]), row[2], row[1]))
        lanes = [
            timeline_pb2.TimelineLane(node=node, gpu_uuid=gpu, gpu_index=number, pool=pool)
            for node, gpu, number, pool in found[first : first + limit]
        ]
        return len(found), lanes

    def _jobs(self, first: int, limit: int) -> tuple[int, list[timeline_pb2.TimelineLane]]:
        ((total,),) = self._all(window_sql(f"SELECT count(DISTINCT h.job) {_JOBS}"))
        page = (
            f"SELECT h.job, j.user, j.name, max(h.pool) {_JOBS} GROUP BY h.job ORDER BY j.born DESC LIMIT :n OFFSET :o"
        )
        lanes = [
            timeline_pb2.TimelineLane(job_id=job, user=user, name=name, pool=pool)
            for job, user, name, pool in self._all(window_sql(page), n=limit, o=first)
        ]
        return total, lanes

    def _nodes(self, first: int, limit: int) -> tuple[int, list[timeline_pb2.TimelineLane]]:
        found = self._all(_NODE_LANES)
        if self._request.of_user:
            theirs = {node for node, _ in self._all(window_sql(_GPUS_OF_USER))}
            found = [row for row in found if row[0] in theirs]
        found.sort(key=lambda row: _natural(row[0]))
        page = found[first : first + limit]
        return len(found), [timeline_pb2.TimelineLane(node=node, pool=pool, gpus=gpus) for node, pool, gpus in page]

    def _pools(self, first: int, limit: int) -> tuple[int, list[timeline_pb2.TimelineLane]]:
        found = sorted(self._all(_POOL_LANES))
        page = found[first : first + limit]
        return len(found), [timeline_pb2.TimelineLane(pool=pool, gpus=gpus) for pool, gpus in page]

    # --- spans ---

    def _fill_all(self, lanes: list[timeline_pb2.TimelineLane]) -> None:
        most = MOST_SPANS // max(1, len(lanes))
        for lane in lanes:
            self._fill(lane, most)

    def _fill(self, lane: timeline_pb2.TimelineLane, most: int) -> None:
        """Add the spans of ``lane``, and merge ever wider ones until there are at most so many."""
        window = self._request.until - self._request.since
        bucket = window / self._request.buckets if self._request.buckets else 0.0
        while True:
            rows = self._rows(lane, bucket, most)
            if len(rows) <= most or not bucket or bucket >= window:
                break
            bucket *= 2
        lane.shortened = len(rows) > most
        for row in sorted(rows, key=lambda row: row[0])[:most]:
            _add(lane, row)

    def _rows(self, lane: timeline_pb2.TimelineLane, bucket: float, most: int) -> list[tuple[Any, ...]]:
        query = _LANE_OF_JOB if lane.job_id else _LANE_OF_GPU
        asked: dict[str, Any] = {"bucket": bucket, "most": most + 1}
        asked |= {"job": lane.job_id} if lane.job_id else {"node": lane.node, "gpu": lane.gpu_uuid}
        rows = self._all(_WIDE.format(lane=query, inside=_INSIDE), **asked)
        if bucket:
            rows += self._all(_NARROW.format(lane=query, inside=_INSIDE), **asked)
        return rows

    def _all(self, query: str, **more: object) -> list[tuple[Any, ...]]:
        return self._db.execute(query, self._asked | more).fetchall()


def _add(lane: timeline_pb2.TimelineLane, row: tuple[Any, ...]) -> None:
    start, end, goes_on, doing, job, user, name, attempt, gpus, why, count, inside = row
    lane.spans.add(
        start=start,
        end=end,
        open=bool(goes_on),
        doing=_DOING.get(doing, _SEVERAL),
        job_id=job,
        user=user,
        name=name,
        attempt=attempt,
        gpus=gpus / WHOLE,
        why=why,
        count=count,
        gpu_s=inside / WHOLE,
    )


def _natural(name: str) -> list[str | int]:
    """Return a key by which node 9 comes before node 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
