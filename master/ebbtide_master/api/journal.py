"""Sends the lines of the journal, read outside the loop's thread (``ebb events``, ``ebb story``)."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.job.job import ITS_TURN
from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.named_jobs import job_named
from ebbtide_master.api.request_checks import check_words
from ebbtide_master.api.views import event_message
from ebbtide_master.loop import Parts
from ebbtide_master.store.journal import About, Store, StoredEvent

WAITED_FROM_S: Final = 1.0
"""Shortest wait in seconds that a story mentions."""
LINES_OF_A_PART: Final = 20
"""Lines that are put into words without a break, in about a millisecond."""
MOST_EVENTS: Final = 500
"""Events of one reply to a query."""
SEARCHED_AT_ONCE: Final = 100_000
"""Lines of the journal that one query looks through; those about one job are found without looking."""
MAX_ID_LENGTH: Final = 64
"""Characters of the id of a job or task that is looked for."""
MOST_KINDS: Final = len(e.EVENT_TYPES)


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
                    if line.time >= request.since:
                        yield event_message(line)
                    last = line.sequence
                if not lines:
                    if not request.follow:
                        return
                    await watcher.wait_changed()

    async def QueryEvents(self, request: client_pb2.QueryEventsRequest, context: Any) -> client_pb2.QueryEventsReply:
        """Return the newest events that are of what is asked for, and where the page behind them begins."""
        _check_query(request)
        reply, lines = await asyncio.to_thread(_page_of_events, self._store, request)
        await self._loop.ask_in_parts(partial(_put_into_words, lines, reply))
        return reply

    async def ShowStory(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.StoryReply:
        """Return all events of one job."""
        await self._loop.ask(lambda cluster: job_named(cluster, request.job_id))
        reply, story, last = client_pb2.StoryReply(), _Story(), 0
        while lines := await asyncio.to_thread(_page_of_story, self._store, request.job_id, last):
            await self._loop.ask_in_parts(partial(story.tell, lines, reply))
            last = lines[-1].sequence
        return reply


def _check_query(request: client_pb2.QueryEventsRequest) -> None:
    """Raise `SpecError` for what no query can mean."""
    if request.limit > MOST_EVENTS:
        raise SpecError("limit", f"{request.limit} events are over the limit of {MOST_EVENTS}")
    for name in ("since", "until"):
        if not 0.0 <= getattr(request, name) < math.inf:
            raise SpecError(name, "is not a time in Unix seconds")
    if len(request.kinds) > MOST_KINDS:
        raise SpecError("kinds", f"{len(request.kinds)} kinds are over the limit of {MOST_KINDS}")
    for kind in request.kinds:
        if kind not in e.EVENT_TYPES:
            raise SpecError("kinds", f"there is no kind of event {kind[:64]!r}")
    check_words("job", request.job_id, MAX_ID_LENGTH)
    check_words("node", request.node, limits.MAX_NODE_NAME_LENGTH)


def _page_of_events(
    store: Store, request: client_pb2.QueryEventsRequest
) -> tuple[client_pb2.QueryEventsReply, list[StoredEvent]]:
    """Return a reply without its events, and the lines of the journal that become these. Blocks."""
    last = store.last_sequence
    reply, before = client_pb2.QueryEventsReply(last_sequence=last), min(request.before_sequence or last + 1, last + 1)
    if request.after_sequence >= before - 1:
        return reply, []
    first = next(store.events(limit=1), None)
    after: int = max(request.after_sequence, first.sequence - 1 if first else 0)
    if request.since or request.until:
        recorded = store.recorded(request.since, request.until or math.inf, before, after)
        before, after = min(before, recorded.stop), max(after, recorded.start - 1)
    limit = request.limit or MOST_EVENTS
    about = About(tuple(request.kinds), request.job_id, request.node, request.since, request.until)
    low = after if about.job else max(after, before - 1 - SEARCHED_AT_ONCE)
    lines = list(store.newest(before, low, limit, about))
    if len(lines) == limit:
        low = lines[-1].sequence - 1
    if low > after:
        oldest = next(store.events(low, limit=1), None)
        reply.older_before, reply.searched_to = low + 1, oldest.time if oldest else 0.0
    return reply, lines


def _put_into_words(lines: list[StoredEvent], reply: client_pb2.QueryEventsReply, _: Cluster) -> Parts[None]:
    for number, line in enumerate(lines):
        if not number % LINES_OF_A_PART:
            yield
        reply.events.append(event_message(line))


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
        last = store.last_sequence
        recorded = store.recorded(request.since, math.inf, last + 1, begin)
        begin = max(begin, recorded.start - 1 if recorded else last)
    return begin
