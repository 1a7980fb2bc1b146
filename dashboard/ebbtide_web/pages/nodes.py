"""The page of the nodes: all of them, filtered, sorted and in pages of rows."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from ebbtide_protos.quantities import printable
from ebbtide_protos.v1 import client_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.access.sessions import Session
from ebbtide_web.board.feed import Forecasts
from ebbtide_web.board.picture import ENDED, SET_ASIDE, ClusterPicture, gpu_state, natural
from ebbtide_web.board.shared_page import encoded
from ebbtide_web.pages.page import Page, PageRoute
from ebbtide_web.pages.query import LONGEST_TEXT, order, page_number

PAGE: Final = 100
"""Rows of one page."""
MOST_CELLS: Final = 64
"""GPUs of a node that are drawn one by one."""
MOST_JOBS: Final = 6
"""Jobs on a node that a row names."""
TABS: Final = ("all", "idle", "out", "problems", "ended")
SORTS: Final = ("name", "pool", "state", "idle", "use")
FACETS: Final = ("state", "pool")
LETTERS: Final = {
    "allocated": "a",
    "idle": "i",
    "foreign": "f",
    "quarantined": "q",
    "unhealthy": "u",
    "unreachable": "r",
    "unspecified": "r",
}


class NodesPage(Page):
    """Shows a part of the nodes."""

    def routes(self) -> Sequence[PageRoute]:
        """Return the routes of the page."""
        return PageRoute("/nodes", self.show), PageRoute("/stream/nodes", self.stream)

    async def show(self, request: Request, session: Session) -> Response:
        """Show the page."""
        return self._templates.page("nodes.html", session, wanted=WantedNodes.read(request.query_params))

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream a part of the nodes."""
        return streams.of_topic(session, self._dashboard.feed, WantedNodes.read(request.query_params))


@dataclass(frozen=True, slots=True)
class WantedNodes:
    """Which nodes the page shows, as its address says it."""

    foresees: ClassVar[bool] = False
    tab: str = "all"
    text: str = ""
    state: str = ""
    pool: str = ""
    sort: str = "name"
    down: bool = False
    page: int = 0

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "WantedNodes":
        """Read the query of an address; what makes no sense is as if it were not there."""
        sort, down = order(query, SORTS)
        return cls(
            tab=query.get("show", "") if query.get("show") in TABS else "all",
            text=query.get("q", "").strip()[:LONGEST_TEXT],
            state=query.get("state", "")[:LONGEST_TEXT],
            pool=query.get("pool", "")[:LONGEST_TEXT],
            sort=sort,
            down=down,
            page=page_number(query),
        )

    def query(self) -> str:
        """Return the query of an address that means this."""
        parts = {
            "show": "" if self.tab == "all" else self.tab,
            "q": self.text,
            "state": self.state,
            "pool": self.pool,
            "sort": "" if (self.sort, self.down) == ("name", False) else "-" * self.down + self.sort,
            "page": str(self.page or ""),
        }
        return urlencode({key: value for key, value in parts.items() if value})

    def cells(self, picture: ClusterPicture, forecasts: Forecasts) -> dict[str, str]:
        """Return a cell for each row, one with their order, and one with the choices of the filters."""
        lines = [_line(picture, node) for node in picture.nodes.values()]
        of_tab = [line for line in lines if _is_of(line, self.tab)]
        found = _ordered([line for line in of_tab if _matches(line, self)], self)
        last = max(0, (len(found) - 1) // PAGE)
        page = min(self.page, last)
        shown = found[page * PAGE : (page + 1) * PAGE]
        told = {
            "page": encoded({
                "rows": list(dict.fromkeys(printable(line.node.name) for line in shown)),
                "total": len(found),
                "page": page,
                "pages": last + 1,
                "tabs": {tab: sum(_is_of(line, tab) for line in lines) for tab in TABS},
                "pools": len({line.node.pool for line in lines}),
            }),
            "facets": encoded(_facets(of_tab)),
        }  # fmt: skip
        for line in shown:
            told[f"row:{printable(line.node.name)}"] = picture.cell("row", line.node.name, partial(_row, picture))
        return told


@dataclass(slots=True)
class _NodeRow:
    """A node, what is on it, and how many of its GPUs are in which state."""

    node: client_pb2.BoardNode
    load: client_pb2.BoardLoad
    counts: Counter[str]


def _line(picture: ClusterPicture, node: client_pb2.BoardNode) -> _NodeRow:
    load = picture.load(node.name)
    return _NodeRow(node, load, Counter(map(gpu_state, load.gpus)))


def _is_of(line: _NodeRow, tab: str) -> bool:
    """Return whether a tab shows a node; one that has ended as announced is in a tab of its own only."""
    ended = line.load.state == ENDED
    if ended or tab == "ended":
        return ended and tab == "ended"
    match tab:
        case "idle":
            return line.load.state == "up" and line.counts["idle"] > 0
        case "out":
            return line.load.state in ("draining", "drained")
        case "problems":
            return line.load.state == "down" or any(line.counts[state] for state in (*SET_ASIDE, "foreign"))
        case _:
            return True


def _matches(line: _NodeRow, wanted: WantedNodes) -> bool:
    if wanted.state and line.load.state != wanted.state:
        return False
    if wanted.pool and line.node.pool != wanted.pool:
        return False
    text = wanted.text.casefold()
    return not text or text in line.node.name.casefold() or any(text in gpu.model.casefold() for gpu in line.node.gpus)


def _facets(lines: Iterable[_NodeRow]) -> dict[str, dict[str, int]]:
    """Return how many nodes have each value, for the filters."""
    counts = {name: Counter[str]() for name in FACETS}
    for line in lines:
        counts["state"][line.load.state] += 1
        counts["pool"][line.node.pool] += 1
    return {name: dict(counter.most_common(20)) for name, counter in counts.items()}


def _ordered(lines: list[_NodeRow], wanted: WantedNodes) -> list[_NodeRow]:
    by_name = sorted(lines, key=lambda line: natural(line.node.name))
    keys: dict[str, Callable[[_NodeRow], Any]] = {
        "pool": lambda line: line.node.pool,
        "state": lambda line: line.load.state,
        "idle": lambda line: line.counts["idle"] if line.load.state == "up" else -1,
        "use": lambda line: -1.0 if (use := _use(line.load)) is None else use,
    }
    if wanted.sort == "name":
        return by_name[::-1] if wanted.down else by_name
    return sorted(by_name, key=keys[wanted.sort], reverse=wanted.down)


def _use(load: client_pb2.BoardLoad) -> float | None:
    """Return how much the GPUs are used, of those of which it is known; None if it is known of none."""
    known = [gpu.use for gpu in load.gpus if gpu.HasField("use")]
    return sum(known) / len(known) if known else None


def _row(picture: ClusterPicture, node: client_pb2.BoardNode, load: client_pb2.BoardLoad) -> dict[str, Any]:
    jobs = dict.fromkeys(holder.job_id for gpu in load.gpus for holder in gpu.holders)
    use = _use(load)
    return {
        "name": node.name,
        "pool": node.pool,
        "state": load.state,
        "reason": load.reason,
        "seen": load.last_seen or None,
        "model": node.gpus[0].model if node.gpus else "",
        "gpus": len(node.gpus),
        "cells": "".join(LETTERS[gpu_state(gpu)] for gpu in load.gpus[:MOST_CELLS]),
        "counts": dict(Counter(map(gpu_state, load.gpus))),
        "use": None if use is None else round(use, 2),
        "gpu_mem": [sum(gpu.mem_used_bytes for gpu in load.gpus), sum(gpu.mem_bytes for gpu in node.gpus)],
        "cpus": [load.cpus_allocated, load.cpus],
        "mem": [load.mem_allocated_bytes, load.mem_bytes],
        "why": next((gpu.why for gpu in load.gpus if gpu.why), ""),
        "reserved": next((gpu.reserved for gpu in load.gpus if gpu.reserved), ""),
        "jobs": [picture.holder(id) for id in list(jobs)[:MOST_JOBS]],
        "more_jobs": max(0, len(jobs) - MOST_JOBS),
    }
