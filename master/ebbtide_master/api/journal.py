"""Sends the lines of the journal, read outside the loop's thread (``ebb events``, ``ebb story``)."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.job.job import ITS_TURN
from ebbtide_core.model import limits
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.named_jobs import job_named
from ebbtide_master.api.views import event_message
from ebbtide_master.loop import Parts
from ebbtide_master.store.journal import Store, StoredEvent

WAITED_FROM_S: Final = 1.0
"""Shortest wait in seconds that a story mentions."""
LINES_OF_A_PART: Final = 20
"""Lines that are put into words without a break, in about a millisecond."""


class JournalService:
    """Sends events in the order of the journal."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop
        self._store = master.store
        self._changes = master.changes

    async def WatchEvents(
        self, request: client_pb2.WatchEventsRequest, context: Any
    ) -> AsyncIterator[client_pb2.Event]:
        """Send the journal behind ``after_sequence``; with ``follow``, also the lines that are added to it."""
        last = await asyncio.to_thread(begin_of_events, self._store, request)
        with self._changes.watch() as watcher:
            while True:
                lines = await asyncio.to_thread(lambda: list(self._store.events(last, limit=limits.EVENTS_AT_ONCE)))  # noqa: B023
                for line in lines:
                    yield event_message(line)
                    last = line.sequence
                if not lines:
                    if not request.follow:
                        return
                    await watcher.wait_changed()

    async def ShowStory(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.StoryReply:
        """Return all events of one job."""
        await self._loop.ask(lambda cluster: job_named(cluster, request.job_id))
        reply, story, last = client_pb2.StoryReply(), _Story(), 0
        while lines := await asyncio.to_thread(_page_of_story, self._store, request.job_id, last):
            await self._loop.ask_in_parts(partial(story.tell, lines, reply))
            last = lines[-1].sequence
        return reply


def _page_of_story(store: Store, job: str, after: int) -> list[StoredEvent]:
    """Return the next lines about ``job`` behind ``after``. Blocks."""
    return list(store.events(after, job, limits.EVENTS_AT_ONCE))


class _Story:
    """Puts events into words; a job that waited without a reason from its policy waited for its turn."""

    def __init__(self) -> None:
        self._since: float | None = None  # since when the job waits, or waited when it was last placed

    def tell(self, lines: Iterable[StoredEvent], reply: client_pb2.StoryReply, _: Cluster) -> Parts[None]:
        """Add ``lines``, which follow the earlier ones, to ``reply``."""
        for number, line in enumerate(lines):
            if not number % LINES_OF_A_PART:
                yield
            reply.events.append(self._message(line))

    def _message(self, line: StoredEvent) -> client_pb2.Event:
        message = event_message(line)
        match line.event:
            case e.JobSubmitted() | e.ReleaseRequested() | e.ResumeRequested() | e.AttemptExited() | e.AttemptFreed():
                self._since = line.time
            case e.AttemptPlaced(waited="") if self._since is not None and line.time - self._since >= WAITED_FROM_S:
                message.text += f" (until then: {ITS_TURN})"
            case _:
                pass
        return message


def begin_of_events(store: Store, request: client_pb2.WatchEventsRequest) -> int:
    """Return the line behind which the requested events begin. Blocks."""
    begin: int = request.after_sequence
    if request.tail:
        begin = max(begin, store.last_sequence - request.tail)
    if request.since:
        begin = max(begin, _last_before(store, request.since))
    return begin


def _last_before(store: Store, time: float) -> int:
    """Return the line behind which all lines were recorded at ``time`` or later, as the times of lines only grow."""
    low, high = 0, store.last_sequence
    while low < high:
        middle = (low + high) // 2
        line = next(store.events(middle, limit=1), None)
        if line is None or line.time >= time:
            high = middle
        else:
            low = line.sequence
    return low
