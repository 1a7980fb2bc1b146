"""The page of the usage: who had how much GPU time, and what became of it.

The master is asked for sums once for all who look at the same, and not again before a while has passed.
"""

import asyncio
import csv
import io
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from ebbtide_protos.quantities import printable
from ebbtide_protos.v1 import usage_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.access.sessions import Session
from ebbtide_web.answers import Templates
from ebbtide_web.board.shared_page import encoded, event
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.pages.page import Page, PageRoute
from ebbtide_web.reach import Master, MasterRefusedError
from ebbtide_web.streams import PING, PING_S, Events, before_end, next_of, pause

KEPT_S: Final = 60.0
"""Seconds for which an answer is kept, at least."""
REST: Final = 20
"""The same as a multiple of the time that it took, so that asking takes a twentieth of the time at most."""
WINDOWS: Final[Mapping[str, int]] = {"day": 1, "week": 7, "month": 30, "quarter": 90}
"""Days of each window; that of one day is cut into hours, the others into days."""
BY: Final = ("user", "pool")
MOST_ROWS: Final = 100
"""Users or pools that are shown, those with the most GPU time; the file has all."""
MOST_FOREIGN: Final = 20
HOUR_S: Final = 3600.0
PARTS: Final = ("useful", "unknown", "lost", "idle", "starting", "leaving")
"""What allocated GPU time is made of."""
COLUMNS: Final = ("jobs", "allocated", *PARTS, "waiting", "suspended", "held")


class UsagePage(Page):
    """Shows GPU time, and sends all sums as a file for spreadsheets."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        super().__init__(dashboard, templates)
        self.ledger = UsageLedger(dashboard.master, dashboard.settings.token)

    def routes(self) -> Sequence[PageRoute]:
        """Return the routes of the page."""
        return (
            PageRoute("/usage", self.show),
            PageRoute("/usage.csv", self.file),
            PageRoute("/stream/usage", self.stream),
        )

    async def show(self, request: Request, session: Session) -> Response:
        """Show the page."""
        return self._templates.page("usage.html", session, wanted=WantedUsage.read(request.query_params))

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream how far the sums are, the sums, and these again whenever they are asked for anew."""
        wanted = WantedUsage.read(request.query_params)
        return streams.again(session, lambda: _usage_now(session, self.ledger, wanted))

    async def file(self, request: Request, session: Session) -> Response:
        """Send all sums as a file for spreadsheets."""
        wanted = WantedUsage.read(request.query_params)
        found = await self.ledger.answer(wanted)
        name = f"usage-{wanted.window}-by-{wanted.by}.csv"
        kept = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(csv_text(wanted, found.by_key.accounts), media_type="text/csv", headers=kept)

    async def close(self) -> None:
        """Give up what is being asked."""
        await self.ledger.close()


async def _usage_now(session: Session, ledger: "UsageLedger", wanted: "WantedUsage") -> Events:
    while True:
        async with aclosing(ledger.replies(wanted)) as replies:
            while (found := await before_end(session, next_of(replies))) is not None:
                if isinstance(found, UsageSums):
                    facts = usage_facts(wanted, found.edges, found.by_key, found.by_day)
                    yield event("usage", encoded(facts))
                    break
                yield event("progress", encoded({"done": found}))
        while (wait_s := ledger.wait_s(wanted)) > 0:
            if await before_end(session, pause(min(PING_S, wait_s))) is None:
                return
            yield PING
        if session.ended.is_set():
            return


@dataclass(frozen=True, slots=True)
class WantedUsage:
    """Which usage the page shows, as its address says it; viewers with the same share one answer."""

    window: str = "week"
    by: str = "user"

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "WantedUsage":
        """Read the query of an address; what makes no sense is as if it were not there."""
        return cls(
            window=query.get("window", "") if query.get("window") in WINDOWS else "week",
            by=query.get("by", "") if query.get("by") in BY else "user",
        )

    def edges(self, now: float) -> list[float]:
        """Return where the window's hours or days begin, in Unix seconds and the local time, and its end."""
        if self.window == "day":
            end = datetime.fromtimestamp(now).replace(minute=0, second=0, microsecond=0).timestamp()
            return [*(end - HOUR_S * back for back in range(23, -1, -1)), max(now, end + 1.0)]
        today = datetime.fromtimestamp(now).date()
        days = (today - timedelta(days=back) for back in range(WINDOWS[self.window] - 1, -1, -1))
        begins = [datetime.combine(day, datetime.min.time()).timestamp() for day in days]
        return [*begins, max(now, begins[-1] + 1.0)]

    def labels(self, edges: Sequence[float]) -> list[str]:
        """Return what each hour or day between ``edges`` is called, by the clock that they are cut by."""
        form = "%H:%M" if self.window == "day" else "%m-%d"
        return [datetime.fromtimestamp(begin).strftime(form) for begin in edges[:-1]]

    def requests(self, now: float) -> tuple[usage_pb2.UsageRequest, usage_pb2.UsageRequest]:
        """Return the questions to the master: the sums by user or pool, and those by hour or day."""
        edges = self.edges(now)
        by_key = usage_pb2.UsageRequest(edges=(edges[0], edges[-1]), by=[self.by])
        return by_key, usage_pb2.UsageRequest(edges=edges, by=["day"])


def usage_facts(
    wanted: WantedUsage, edges: list[float], by_key: usage_pb2.UsageReply, by_day: usage_pb2.UsageReply
) -> dict[str, Any]:
    """Return what the page shows, in GPU-seconds and seconds of jobs."""
    rows = sorted((row_facts(account) for account in by_key.accounts), key=lambda row: (-row["allocated"], row["key"]))
    periods = {int(account.key[0]): row_facts(account) for account in by_day.accounts}
    gpus, foreign = by_key.gpus, sorted(by_key.foreign_gpu_s.items(), key=lambda each: -each[1])
    return {
        "window": wanted.window,
        "by": wanted.by,
        "since": edges[0],
        "until": by_key.until,
        "known_since": by_key.known_since if by_key.known_since > edges[0] else None,
        "total": row_facts(by_key.total),
        "rows": rows[:MOST_ROWS],
        "more_rows": max(0, len(rows) - MOST_ROWS),
        "periods": [
            {"label": label, **{part: periods[number][part] if number in periods else 0.0 for part in PARTS}}
            for number, label in enumerate(wanted.labels(edges))
        ],
        "gpus": {
            "count": gpus.gpus,
            "known": gpus.known_gpu_s,
            "allocated": gpus.allocated_gpu_s,
            "idle": gpus.idle_gpu_s,
            "foreign": gpus.foreign_gpu_s,
            "unavailable": gpus.unavailable_gpu_s,
        },
        "foreign": [{"user": user, "seconds": seconds} for user, seconds in foreign[:MOST_FOREIGN]],
        "problems": list(by_key.problems),
    }


def row_facts(account: usage_pb2.UsageAccount) -> dict[str, Any]:
    """Return one account; what was computed and neither lost, unknown nor idle is useful."""
    spent = account.lost_gpu_s + account.unknown_gpu_s + account.idle_gpu_s
    return {
        "key": account.key[0] if account.key else "",
        "jobs": account.jobs,
        "allocated": account.allocated_gpu_s,
        "useful": max(0.0, account.computing_gpu_s - spent),
        "unknown": account.unknown_gpu_s,
        "lost": account.lost_gpu_s,
        "idle": account.idle_gpu_s,
        "starting": account.starting_gpu_s,
        "leaving": account.leaving_gpu_s,
        "waiting": account.waiting_s,
        "suspended": account.suspended_s,
        "held": account.held_s,
    }


def csv_text(wanted: WantedUsage, accounts: Iterable[usage_pb2.UsageAccount]) -> str:
    """Return all accounts as a table for spreadsheets, in hours; no cell is a formula there."""
    written = io.StringIO()
    table = csv.writer(written)
    gpu_hours, job_hours = COLUMNS[1 : 2 + len(PARTS)], COLUMNS[2 + len(PARTS) :]
    titles = [*(f"{name}_gpu_hours" for name in gpu_hours), *(f"{name}_hours" for name in job_hours)]
    table.writerow((wanted.by, "jobs", *titles))
    for row in map(row_facts, accounts):
        table.writerow((_plain(row["key"]), row["jobs"], *(f"{row[name] / HOUR_S:.4f}" for name in COLUMNS[1:])))
    return written.getvalue()


def _plain(text: str) -> str:
    found = printable(text)
    return f"'{found}" if found.startswith(("=", "+", "-", "@")) else found


# --- asking the master ---


@dataclass(slots=True)
class UsageSums:
    """The two sums of one window, and what they were asked for."""

    edges: list[float]
    by_key: usage_pb2.UsageReply
    by_day: usage_pb2.UsageReply


@dataclass(slots=True)
class _UsageQuestion:
    """A question that is being answered, or was; ``done`` is how much of it is, from 0 to 1."""

    task: asyncio.Task[UsageSums]
    until: float = 0.0
    done: float = 0.0
    news: asyncio.Event = field(default_factory=asyncio.Event)


class UsageLedger:
    """The answers by what was asked. Everybody may see them, so that ``token`` may be anybody's."""

    def __init__(self, master: Master, token: Callable[[], str], now: Callable[[], float] = time.time) -> None:
        self._master = master
        self._token = token
        self._now = now
        self._asked: dict[WantedUsage, _UsageQuestion] = {}

    async def replies(self, wanted: WantedUsage) -> AsyncGenerator[float | UsageSums, None]:
        """Yield how much is done, from 0 to 1, and at last the answer. Raises `AwayError` and `MasterRefusedError`."""
        asked = self._asked.get(wanted)
        if asked is None or self._is_over(asked):
            asked = self._asked[wanted] = self._ask(wanted)
        while not asked.task.done():
            yield asked.done
            news = asyncio.ensure_future(asked.news.wait())
            try:
                await asyncio.wait({news, asked.task}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
        yield asked.task.result()

    async def answer(self, wanted: WantedUsage) -> UsageSums:
        """Return the answer. Raises `AwayError` and `MasterRefusedError`."""
        async with aclosing(self.replies(wanted)) as replies:
            async for found in replies:
                if isinstance(found, UsageSums):
                    return found
        raise AssertionError("the last reply is the answer")

    def wait_s(self, wanted: WantedUsage) -> float:
        """Return the seconds until the answer is asked for anew."""
        asked = self._asked.get(wanted)
        return 0.0 if asked is None else max(0.0, asked.until - time.monotonic())

    async def close(self) -> None:
        """Give up what is being asked."""
        tasks = [asked.task for asked in self._asked.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _is_over(self, asked: _UsageQuestion) -> bool:
        if not asked.task.done():
            return False
        failed = asked.task.cancelled() or asked.task.exception() is not None
        return failed or time.monotonic() >= asked.until

    def _ask(self, wanted: WantedUsage) -> _UsageQuestion:
        async def ask() -> UsageSums:
            began = time.monotonic()
            now = self._now()
            by_key, by_day = wanted.requests(now)
            found = UsageSums(
                wanted.edges(now), await self._read(by_key, asked, 0.0), await self._read(by_day, asked, 0.5)
            )
            asked.until = time.monotonic() + max(KEPT_S, REST * (time.monotonic() - began))
            return found

        asked = _UsageQuestion(asyncio.create_task(ask(), name="usage"))
        asked.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # perhaps nobody waits any more
        return asked

    async def _read(
        self, request: usage_pb2.UsageRequest, asked: _UsageQuestion, before: float
    ) -> usage_pb2.UsageReply:
        last: usage_pb2.UsageReply | None = None
        async with aclosing(self._master.stream("Usage", request, self._token())) as replies:
            async for last in replies:
                asked.done = before + last.done / 2
                news, asked.news = asked.news, asyncio.Event()
                news.set()
        if last is None or not last.HasField("total"):
            raise MasterRefusedError("the master gave no sums", 502)
        return last
