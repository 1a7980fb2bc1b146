"""Which part of an array its page shows, and the facts of it. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_web.listed import page_number
from ebbtide_web.picture import LONGEST_TEXT, optional, state_of

PAGE: Final = 100
"""Tasks of one page of the table."""
LETTERS: Final = {
    "PENDING": "p",
    "STARTING": "s",
    "RUNNING": "r",
    "SUSPENDING": "g",
    "SUSPENDED": "z",
    "STOPPING": "o",
    "UNREACHABLE": "u",
    "COMPLETED": "c",
    "FAILED": "f",
    "CANCELLED": "x",
}
_LONGEST_METRIC: Final = 64
_STATES: Final = {int(number): name.removeprefix("JOB_STATE_") for name, number in job_pb2.JobState.items()}


@dataclass(frozen=True, slots=True)
class WantedTasks:
    """Which param and metric of an array a page compares, and which page of its tasks it shows."""

    param: str = ""
    metric: str = ""
    page: int = 0

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "WantedTasks":
        """Read the query of an address; what makes no sense is as if it were not there."""
        param, metric = query.get("param", ""), query.get("metric", "")
        return cls(
            param=param[:LONGEST_TEXT] if param.isprintable() else "",
            metric=metric[:_LONGEST_METRIC] if metric.isprintable() else "",
            page=page_number(query),
        )

    def request(self, id: str) -> client_pb2.ShowArrayRequest:
        """Return the question to the master about array ``id``."""
        return client_pb2.ShowArrayRequest(
            job_id=id, param=self.param, metric=self.metric, first=self.page * PAGE, limit=PAGE
        )


def array_facts(reply: client_pb2.ShowArrayReply, wanted: WantedTasks) -> dict[str, Any]:
    """Return what the page of an array shows; the columns have an entry for each task, None where it has no number."""
    count = len(reply.indices)
    return {
        "id": reply.job_id,
        "user": reply.user,
        "name": reply.name,
        "indices": list(reply.indices),
        "states": "".join(LETTERS[_STATES[number]] for number in reply.states),
        "params": list(reply.params),
        "metrics": list(reply.metrics),
        "param": reply.param,
        "metric": reply.metric,
        "x": _numbers(reply.x),
        "y": _numbers(reply.y),
        "less": reply.less_is_better,
        "rungs": [{"steps": rung.steps, "tasks": rung.tasks} for rung in reply.rungs],
        "page": wanted.page,
        "pages": max(1, -(-count // PAGE)),
        "rows": [_row(row) for row in reply.rows],
    }


def first_tasks(reply: client_pb2.ShowArrayReply) -> dict[str, Any]:
    """Return the first tasks alone, as the page of the array as a job shows them."""
    return {
        "id": reply.job_id,
        "metric": reply.metric,
        "tasks": [_row(row) for row in reply.rows],
        "left_out": max(0, len(reply.indices) - len(reply.rows)),
    }


def _numbers(values: Iterable[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _row(row: client_pb2.ArrayTaskRow) -> dict[str, Any]:
    value = optional(row, "value")
    return {
        "index": row.index,
        "state": state_of(row),
        "reason": row.reason,
        "params": dict(row.params),
        "step": optional(row, "step"),
        "total": optional(row, "total"),
        "value": value if value is not None and math.isfinite(value) else None,
        "rungs": row.rungs,
        "preemptions": row.preemptions,
    }
