"""The page of an array: its tasks by a parameter and a metric, and a table of them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ebbtide_protos.v1 import client_pb2, job_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.access.sessions import Session
from ebbtide_web.answers import answer
from ebbtide_web.board.picture import optional, state_of
from ebbtide_web.board.shared_page import encoded
from ebbtide_web.pages.page import Page, PageRoute
from ebbtide_web.pages.query import LONGEST_TEXT, check_id, page_number

ARRAY_S: Final = 2.0
"""Seconds after which an array of a thousand tasks or less is asked for again; a larger one is so more seldom."""
TASKS_A_S: Final = 500
"""Tasks of an array that are told of a second, for each who looks at one."""
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


class ArrayPage(Page):
    """Shows one array."""

    def routes(self) -> Sequence[PageRoute]:
        """Return the routes of the page, and of what the page of the array as a job shows."""
        return (
            PageRoute("/arrays/{id}", self.show),
            PageRoute("/stream/arrays/{id}", self.stream),
            PageRoute("/jobs/{id}/tasks", self.tasks),
        )

    async def show(self, request: Request, session: Session) -> Response:
        """Show the page."""
        id = check_id(request.path_params["id"])
        asked = self._dashboard.call(session, "ShowArray", WantedTasks().request(id))
        array = await self._first_seen(session, asked, f"Array {id}")
        return self._templates.page("array.html", session, id=id, name=array.name if array is not None else "")

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream an array whenever it is another than before, as its viewer may see it."""
        id, wanted = check_id(request.path_params["id"]), WantedTasks.read(request.query_params)

        async def ask() -> tuple[str, float]:
            found = await self._dashboard.master.call("ShowArray", wanted.request(id), session.token)
            return encoded(array_facts(found, wanted)), max(ARRAY_S, len(found.indices) / TASKS_A_S)

        return streams.again(session, lambda: streams.changes(session, "array", ask))

    async def tasks(self, request: Request, session: Session) -> Response:
        """Return the first tasks of an array."""
        wanted = WantedTasks().request(check_id(request.path_params["id"]))
        return answer(first_tasks(await self._dashboard.call(session, "ShowArray", wanted)))


@dataclass(frozen=True, slots=True)
class WantedTasks:
    """Which param and metric of an array the page compares, and which page of its tasks it shows."""

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
