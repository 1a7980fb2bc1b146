"""Keeps the picture of the cluster from one stream, and makes the cells of each page once for all its viewers."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, ClassVar, Final, Protocol

from ebbtide_protos.v1 import client_pb2

from ebbtide_web.access.sessions import NoRoomError
from ebbtide_web.board.picture import ClusterPicture, optional
from ebbtide_web.board.shared_page import SharedPage, encoded
from ebbtide_web.reach import AwayError, Master, MasterRefusedError

RETRY_S: Final = 0.5
SILENT_S: Final = 15.0
"""Seconds without a word after which the master counts as away; it says something every few seconds."""
PAUSE_S: Final = 0.2
"""Seconds, at least, between two frames of a page."""
REST: Final = 4
"""The pause between frames, as a multiple of the time that they took: so all pages take a fifth of a core."""
FORECAST_S: Final = 10.0
MOST_TOPICS: Final = 200
MOST_TOPICS_OF_A_USER: Final = 20
"""Different pages that one user looks at, in all their sessions."""

Forecasts = Mapping[str, Mapping[str, Any]]
"""What is foreseen of jobs, by id."""

log = logging.getLogger(__name__)


class BoardTopic(Protocol):
    """What viewers look at, such as a part of the queue. Those who look at equal ones get the same frames."""

    foresees: ClassVar[bool]
    """Whether it shows when jobs start."""

    def __hash__(self) -> int: ...

    def cells(self, picture: ClusterPicture, forecasts: Forecasts) -> dict[str, str]:
        """Return what is shown, as cells of JSON by key."""


class SharedFeed:
    """What all viewers share. ``token`` proves somebody, whoever that is: the master tells everybody the same."""

    def __init__(self, master: Master, token: Callable[[], str], now: Callable[[], float] = time.time) -> None:
        self.picture = self._coming = ClusterPicture()
        self.away_since: float | None = now()
        self.away_words = "it was not asked yet"
        self.frames_made = 0
        self._master = master
        self._token = token
        self._now = now
        self._heard = now()
        self._topics: dict[BoardTopic, SharedPage] = {}
        self._seen_by: dict[str, Counter[BoardTopic]] = {}
        self._news = asyncio.Event()
        self._forecasts: dict[str, dict[str, Any]] = {}

    def check_room(self, user: str, wanted: BoardTopic) -> None:
        """Raise `NoRoomError` if so many different pages are open, of ``user`` or of all, that this is one too many."""
        seen = self._seen_by.get(user, ())
        if wanted not in seen and len(seen) >= MOST_TOPICS_OF_A_USER:
            raise NoRoomError(f"{MOST_TOPICS_OF_A_USER} different pages of yours are open already: close one")
        if wanted not in self._topics and len(self._topics) >= MOST_TOPICS:
            raise NoRoomError("too many different pages of the queue and of the nodes are open: close some")

    @contextmanager
    def viewed(self, user: str, wanted: BoardTopic) -> Iterator[SharedPage]:
        """Give the page that all see who want the same. Raises `NoRoomError`."""
        self.check_room(user, wanted)
        seen = self._seen_by.setdefault(user, Counter())
        if wanted not in self._topics:
            self._topics[wanted] = SharedPage()
            self._make(wanted)
        topic = self._topics[wanted]
        topic.viewers += 1
        seen[wanted] += 1
        try:
            yield topic
        finally:
            topic.viewers -= 1
            if not topic.viewers:
                self._topics.pop(wanted, None)
            seen[wanted] -= 1
            if not seen[wanted]:
                del seen[wanted]
            if not seen:
                del self._seen_by[user]

    async def run(self) -> None:
        """Follow the master until cancelled, and go on by itself whenever it was away. Raises a fault of its own."""
        tasks = [asyncio.create_task(work) for work in (self._follow(), self._frames(), self._foresee())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    task.result()
            raise RuntimeError("a part of the feed has ended")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    # --- what the master tells ---

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(self._updates()) as updates:
                    async for update in updates:
                        self._take(update)
                self._lose("the master ended the stream")
            except (AwayError, MasterRefusedError) as error:
                self._lose(str(error))
            except TimeoutError:
                self._lose(f"it said nothing for {SILENT_S:g} s")
                await self._master.close()  # what has died without a word keeps the connection open
            await asyncio.sleep(RETRY_S)

    async def _updates(self) -> AsyncGenerator[client_pb2.BoardUpdate, None]:
        request = client_pb2.WatchBoardRequest()
        async with aclosing(self._master.stream("WatchBoard", request, self._token())) as stream:
            while True:
                async with asyncio.timeout(SILENT_S):
                    update = await anext(stream, None)
                if update is None:
                    return
                yield update

    def _take(self, update: client_pb2.BoardUpdate) -> None:
        self._heard = self._now()
        if update.first:
            self._coming = ClusterPicture()  # the old one is shown until the new one is complete
        self._coming.take(update, self._heard)
        if update.last:
            self.picture, self.away_since = self._coming, None
            self._news.set()

    def _lose(self, why: str) -> None:
        if self.away_since is None:
            self.away_since = self._heard
            log.warning("the master is away: %s", why)
        self.away_words = why
        self._news.set()

    # --- what viewers get ---

    async def _frames(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            began = time.perf_counter()
            for wanted in list(self._topics):
                self._make(wanted)
                await asyncio.sleep(0)
            await asyncio.sleep(max(PAUSE_S, REST * (time.perf_counter() - began)))

    def _make(self, wanted: BoardTopic) -> None:
        topic, away = self._topics.get(wanted), self.away()
        if topic is None:
            return
        self.frames_made += 1
        if not self.picture.known:
            topic.put({"away": encoded(away or {"since": self._heard, "words": "", "starting": True})})
        else:
            topic.put({"away": encoded(away), **wanted.cells(self.picture, self._forecasts)})

    def away(self) -> dict[str, Any] | None:
        """Return since when the master is away (Unix seconds) and in its words why; None if it is not."""
        if self.away_since is None:
            return None
        return {"since": self.away_since, "words": self.away_words}

    # --- what is foreseen ---

    async def _foresee(self) -> None:
        """Ask when the first jobs of the queues start, for as long as somebody looks at a queue."""
        while True:
            if any(wanted.foresees for wanted in self._topics) and self.away_since is None:
                self._forecasts = await self._foreseen()
                self._news.set()
                await asyncio.sleep(FORECAST_S)
            else:
                await asyncio.sleep(PAUSE_S)

    async def _foreseen(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for pool, queue in list(self.picture.queues.items()):
            if not queue.length:
                continue
            try:
                request = client_pb2.ForecastQueueRequest(pool=pool)
                reply = await self._master.call("ForecastQueue", request, self._token())
            except (AwayError, MasterRefusedError) as error:
                log.info("no forecast of pool %s: %s", pool, error)
                continue
            for id in queue.job_ids if reply.why_not else ():
                found[id] = {"start": None, "basis": reply.why_not}
            for job in reply.jobs:
                found[job.job_id] = {
                    "start": optional(job, "start_at"),
                    "basis": job.basis,
                    "after": list(job.after),
                    "preempts": list(job.preempts),
                }
        return found
