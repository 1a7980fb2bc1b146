"""The page of the queue: jobs that wait, run and are over, filtered, sorted and in pages of rows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from ebbtide_protos.v1 import client_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.access.sessions import Session
from ebbtide_web.board.feed import Forecasts
from ebbtide_web.board.picture import CLASSES, FINISHED, ClusterPicture, gpus_words, optional, share_of, state_of
from ebbtide_web.board.shared_page import encoded
from ebbtide_web.pages.page import Page, PageRoute
from ebbtide_web.pages.query import LONGEST_TEXT, order, page_number

PAGE: Final = 200
"""Rows of one page."""
TABS: Final = ("unfinished", "waiting", "running", "finished")
SORTS: Final = ("queue", "id", "name", "user", "state", "gpus", "waited", "priority")
FACETS: Final = ("user", "state", "pool", "class")
_RUNS: Final = ("STARTING", "RUNNING", "SUSPENDING", "STOPPING", "UNREACHABLE")


class QueuePage(Page):
    """Shows a part of the queue."""

    def routes(self) -> Sequence[PageRoute]:
        """Return the routes of the page."""
        return PageRoute("/queue", self.show), PageRoute("/stream/queue", self.stream)

    async def show(self, request: Request, session: Session) -> Response:
        """Show the page."""
        return self._templates.page("queue.html", session, wanted=WantedJobs.read(request.query_params))

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream a part of the queue."""
        return streams.of_topic(session, self._dashboard.feed, WantedJobs.read(request.query_params))


@dataclass(frozen=True, slots=True)
class WantedJobs:
    """Which jobs the page shows, as its address says it."""

    foresees: ClassVar[bool] = True
    tab: str = "unfinished"
    text: str = ""
    user: str = ""
    state: str = ""
    pool: str = ""
    job_class: str = ""
    sort: str = "queue"
    down: bool = False
    page: int = 0

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "WantedJobs":
        """Read the query of an address; what makes no sense is as if it were not there."""
        sort, down = order(query, SORTS)
        return cls(
            tab=query.get("show", "") if query.get("show") in TABS else "unfinished",
            text=query.get("q", "").strip()[:LONGEST_TEXT],
            user=query.get("user", "")[:LONGEST_TEXT],
            state=query.get("state", "")[:LONGEST_TEXT],
            pool=query.get("pool", "")[:LONGEST_TEXT],
            job_class=query.get("class", "")[:LONGEST_TEXT],
            sort=sort,
            down=down,
            page=page_number(query),
        )

    def query(self) -> str:
        """Return the query of an address that means this."""
        parts = {
            "show": "" if self.tab == "unfinished" else self.tab,
            "q": self.text,
            "user": self.user,
            "state": self.state,
            "pool": self.pool,
            "class": self.job_class,
            "sort": "" if (self.sort, self.down) == ("queue", False) else "-" * self.down + self.sort,
            "page": str(self.page or ""),
        }
        return urlencode({key: value for key, value in parts.items() if value})

    def cells(self, picture: ClusterPicture, forecasts: Forecasts) -> dict[str, str]:
        """Return a cell for each row, one with their order, and one with the choices of the filters."""
        places = {id: place for queue in picture.queues.values() for place, id in enumerate(queue.job_ids, 1)}
        tabs = Counter(_tab(job) for job in picture.jobs.values())
        of_arrays = Counter((job.array, _tab(job)) for job in picture.jobs.values() if job.array)
        of_tab = [job for job in picture.jobs.values() if _is_of(job, self.tab)]
        found = [job for job in of_tab if _matches(job, self)]
        lines = _ordered(_folded(found, places), self)
        last = max(0, (len(lines) - 1) // PAGE)
        page = min(self.page, last)
        shown = lines[page * PAGE : (page + 1) * PAGE]
        told = {
            "page": encoded({
                "rows": [_id(line) for line in shown],
                "total": len(lines),
                "page": page,
                "pages": last + 1,
                "tabs": {
                    "unfinished": tabs["waiting"] + tabs["running"],
                    **{name: tabs[name] for name in TABS[1:]},
                },
            }),
            "facets": encoded(_facets(of_tab)),
        }  # fmt: skip
        for line in shown:
            rest = {"forecast": forecasts.get(line.first.job_id), "left": _left(line, of_arrays)}
            told[f"row:{_id(line)}"] = encoded(_row(line) | rest)
        return told


@dataclass(slots=True)
class _QueueRow:
    """One row: a job, or the tasks of an array that are wanted."""

    first: client_pb2.BoardJob
    jobs: list[client_pb2.BoardJob]
    place: int | None


def _tab(job: client_pb2.BoardJob) -> str:
    state = state_of(job)
    return "finished" if state in FINISHED else "running" if state in _RUNS else "waiting"


def _waits(job: client_pb2.BoardJob) -> bool:
    """Return whether the time for which a job has waited goes on."""
    return _tab(job) == "waiting" and job.held_by != "user"


def _is_of(job: client_pb2.BoardJob, tab: str) -> bool:
    found = _tab(job)
    return found == tab or (tab == "unfinished" and found != "finished")


def _matches(job: client_pb2.BoardJob, wanted: WantedJobs) -> bool:
    if wanted.user and job.user != wanted.user:
        return False
    if wanted.state and state_of(job) != wanted.state:
        return False
    if wanted.pool and job.pool != wanted.pool:
        return False
    if wanted.job_class and CLASSES.get(job.job_class, "be") != wanted.job_class:
        return False
    text = wanted.text.casefold()
    return not text or text in job.name.casefold() or text in job.user.casefold() or job.job_id.startswith(text)


def _facets(jobs: Iterable[client_pb2.BoardJob]) -> dict[str, dict[str, int]]:
    """Return how many jobs have each value, for the filters; of users the twenty with the most jobs."""
    counts = {name: Counter[str]() for name in FACETS}
    for job in jobs:
        counts["user"][job.user] += 1
        counts["state"][state_of(job)] += 1
        counts["pool"][job.pool] += 1
        counts["class"][CLASSES.get(job.job_class, "be")] += 1
    return {name: dict(counter.most_common(20)) for name, counter in counts.items()}


def _folded(jobs: Iterable[client_pb2.BoardJob], places: Mapping[str, int]) -> list[_QueueRow]:
    """Return a line for each job, and one for all tasks of an array."""
    lines: dict[str, _QueueRow] = {}
    for job in jobs:
        place, key = places.get(job.job_id), job.array or job.job_id
        line = lines.get(key)
        if line is None:
            lines[key] = _QueueRow(job, [job], place)
            continue
        line.jobs.append(job)
        if place is not None and (line.place is None or place < line.place):
            line.first, line.place = job, place
    return list(lines.values())


def _ordered(lines: list[_QueueRow], wanted: WantedJobs) -> list[_QueueRow]:
    latest = max((line.first.at for line in lines), default=0.0)
    keys = {
        "queue": _in_queue,
        "id": lambda line: _number(line.first),
        "name": lambda line: (line.first.name.casefold(), _number(line.first)),
        "user": lambda line: (line.first.user, _number(line.first)),
        "state": lambda line: (state_of(line.first), _number(line.first)),
        "gpus": lambda line: share_of(line.first.gpus_allocated) or share_of(line.first.gpus_min),
        "waited": lambda line: line.first.waiting_s + (latest - line.first.at if _waits(line.first) else 0.0),
        "priority": lambda line: (line.first.priority, _number(line.first)),
    }
    return sorted(lines, key=keys[wanted.sort], reverse=wanted.down)


def _in_queue(line: _QueueRow) -> tuple[int, float, float]:
    """Order by place in the queue; then those that wait for something else, those that run, and those that are over."""
    job, tab = line.first, _tab(line.first)
    if tab == "finished":
        return (3, -(job.end_time or 0.0), 0.0)
    if tab == "running":
        return (2, _number(job), 0.0)
    return (0, line.place, 0.0) if line.place is not None else (1, _number(job), 0.0)


def _number(job: client_pb2.BoardJob) -> float:
    number = job.job_id.partition(".")[0]
    return float(number) + job.index / 1e7 if number.isascii() and number.isdigit() else 0.0


def _id(line: _QueueRow) -> str:
    return line.first.array or line.first.job_id


def _left(line: _QueueRow, of_arrays: Mapping[tuple[str, str], int]) -> dict[str, int] | None:
    """Return how many tasks of an array are not over, and how many of them run, whether or not they are wanted."""
    if not (array := line.first.array):
        return None
    runs = of_arrays[array, "running"]
    return {"tasks": of_arrays[array, "waiting"] + runs, "run": runs}


def _row(line: _QueueRow) -> dict[str, Any]:
    job, many = line.first, len(line.jobs)
    return {
        "id": _id(line),
        "job": job.job_id,
        "name": job.name,
        "user": job.user,
        "pool": job.pool,
        "state": state_of(job),
        "tasks": dict(Counter(state_of(each) for each in line.jobs)) if job.array else None,
        "many": many,
        "held": job.held_by,
        "gpus": gpus_words(job),
        "class": CLASSES.get(job.job_class, "be"),
        "priority": job.priority,
        "submitted": job.submit_time,
        "ended": optional(job, "end_time"),
        "waited": job.waiting_s,
        "ran": job.running_s,
        "at": job.at,
        "waits": _waits(job),
        "runs": state_of(job) in ("RUNNING", "SUSPENDING", "STOPPING"),
        "step": optional(job, "step"),
        "total": optional(job, "total"),
        "place": line.place,
        "reason": job.reason,
        "nodes": list(job.nodes),
        "more_nodes": max(0, job.node_count - len(job.nodes)),
        "preemptions": job.preemptions,
    }
