"""Sums up how many GPUs of a pool or node were held, over time, for strips that show large clusters. Blocks.

SQLite adds up where spans begin and end in each part of the window; what was held between follows from the sums before.
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ebbtide_core.model.types import WHOLE
from ebbtide_protos.v1 import timeline_pb2

from ebbtide_master.history.window import window_sql

MOST_PARTS: Final = 240
"""Parts of a window for which strips say what was held."""
_OF_USER: Final = "(:user = '' OR EXISTS (SELECT 1 FROM jobs AS j WHERE j.job = h.job AND j.user = :user))"
_HELD_BY_POOL: Final = f"""
SELECT h.pool AS lane, 'held' AS kind, h.start AS start, {{end}} AS end, h.share AS share FROM spans AS h
WHERE {{overlaps}} AND h.share > 0 AND (:pool = '' OR h.pool = :pool) AND {_OF_USER}
"""
_REST_BY_POOL: Final = """
SELECT h.pool, h.rest, h.start, {end}, {whole} FROM gpus AS h WHERE {overlaps} AND (:pool = '' OR h.pool = :pool)
"""
_GPUS: Final = """
SELECT DISTINCT h.node AS node, h.gpu AS gpu FROM gpus AS h
WHERE h.node IN (SELECT value FROM json_each(:nodes)) AND {overlaps}
"""
_HELD_BY_NODE: Final = f"""
SELECT h.node AS lane, 'held' AS kind, h.start AS start, {{end}} AS end, h.share AS share
FROM ({_GPUS}) AS g CROSS JOIN held AS h ON h.node = g.node AND h.gpu = g.gpu
WHERE {{overlaps}}
      AND (:user = '' OR EXISTS (SELECT 1 FROM spans AS s JOIN jobs AS j ON j.job = s.job
                                 WHERE s.key = h.key AND j.user = :user))
"""
_REST_BY_NODE: Final = """
SELECT h.node, h.rest, h.start, {end}, {whole} FROM gpus AS h
WHERE h.node IN (SELECT value FROM json_each(:nodes)) AND {overlaps}
"""
# ``at`` is when a span begins or ends, in seconds since the window does, and ``amount`` what is held more or less then.
_STEPS: Final = """
WITH found AS ({held} UNION ALL {rest}),
steps AS (
    SELECT lane, kind, max(start, :since) - :since AS at, share AS amount FROM found WHERE end > :since
    UNION ALL SELECT lane, kind, min(end, :until) - :since, -share FROM found WHERE end > :since
),
parts AS (SELECT lane, kind, CAST(at / :part AS INTEGER) AS part, at, amount FROM steps)
SELECT lane, kind, part, sum(amount), sum(amount * ((part + 1) * :part - at)) FROM parts GROUP BY lane, kind, part
"""


def _steps(held: str, rest: str) -> str:
    return _STEPS.format(held=window_sql(held), rest=window_sql(rest))


_OF_POOLS: Final = _steps(_HELD_BY_POOL, _REST_BY_POOL)
_OF_NODES: Final = _steps(_HELD_BY_NODE, _REST_BY_NODE)
_PRESENT: Final = "present"


class HeatStrips:
    """Fills lanes of pools and nodes from the history in ``db``; ``asked`` has the window and the filters by name."""

    def __init__(self, db: sqlite3.Connection, asked: Mapping[str, Any], parts: int) -> None:
        self._db = db
        self._asked = asked
        length = asked["until"] - asked["since"]
        self._part_s = length / parts
        drawn = min(max(0.0, asked["edge"] - asked["since"]), length)
        self._count = min(parts, math.ceil(drawn / self._part_s))

    def fill_pools(self, lanes: Sequence[timeline_pb2.TimelineLane]) -> None:
        """Say of each pool what was held in it."""
        self._fill({lane.pool: lane for lane in lanes}, _OF_POOLS)

    def fill_nodes(self, lanes: Sequence[timeline_pb2.TimelineLane]) -> None:
        """Say of each node what was held on it."""
        by_name = {lane.node: lane for lane in lanes}
        self._fill(by_name, _OF_NODES, nodes=json.dumps(list(by_name)))

    def _fill(self, lanes: Mapping[str, timeline_pb2.TimelineLane], query: str, **more: object) -> None:
        steps: dict[tuple[str, str], list[tuple[int, int, float]]] = {}
        for lane, kind, part, amount, inside in self._db.execute(query, {**self._asked, "part": self._part_s, **more}):
            for each in (kind,) if kind == "held" else (kind, _PRESENT):
                steps.setdefault((lane, each), []).append((part, amount, inside))
        for name, lane in lanes.items():
            heat = lane.heat
            for kind, numbers in (
                (_PRESENT, heat.present), ("held", heat.held),
                ("foreign", heat.foreign), ("unavailable", heat.unavailable),
            ):  # fmt: skip
                numbers.extend(self._averages(steps.get((name, kind), ())))

    def _averages(self, steps: Iterable[tuple[int, int, float]]) -> list[float]:
        """Return how many GPUs it was on average in each part, from what changed in which part."""
        amounts, insides = [0] * self._count, [0.0] * self._count
        for part, amount, inside in steps:
            if part < self._count:
                amounts[part] += amount
                insides[part] += inside
        found, before = list[float](), 0
        for amount, inside in zip(amounts, insides, strict=True):
            found.append(max(0.0, round((before + inside / self._part_s) / WHOLE, 4)))
            before += amount
        return found
