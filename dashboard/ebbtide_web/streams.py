"""Streams of server-sent events: of a page that all viewers share, of one job or node, of events, and of a log."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

from ebbtide_protos.v1 import client_pb2
from starlette.responses import Response

from ebbtide_web import array_facts, events_page, job_facts, node_facts, usage_page
from ebbtide_web.array_facts import WantedTasks
from ebbtide_web.events_page import WantedEvents
from ebbtide_web.feed import SharedFeed, Topic
from ebbtide_web.guard import Receive, Scope, Send
from ebbtide_web.log_lines import Lines
from ebbtide_web.picture import FINISHED, WAITING, state_of
from ebbtide_web.reach import AwayError, Master, MasterRefusedError
from ebbtide_web.replays import ReplayFailedError, ReplayProgress, Replays
from ebbtide_web.sessions import Session
from ebbtide_web.shared_page import encoded, event
from ebbtide_web.timeline_answers import TimelineAnswers
from ebbtide_web.timeline_page import WantedTimeline
from ebbtide_web.usage_ledger import UsageLedger, UsageSums
from ebbtide_web.usage_page import WantedUsage
from ebbtide_web.what_if_page import WantedWhatIf, mistake_of

Result = TypeVar("Result")
Events = AsyncGenerator[bytes, None]
Chunks = AsyncGenerator[client_pb2.LogChunk, None]

PING_S: Final = 15.0
"""Seconds after which a stream without news says that it is there."""
RETRY_S: Final = 0.5
PAUSE_S: Final = 0.25
EXPLAINED_S: Final = 15.0
"""Seconds after which a job that waits is explained again: a forecast costs the master a copy of itself."""
NODE_S: Final = 2.0
"""Seconds after which a node that somebody looks at is asked for again."""
ARRAY_S: Final = 2.0
"""Seconds after which an array of a thousand tasks or less is asked for again; a larger one is so more seldom."""
TASKS_A_S: Final = 500
"""Tasks of an array that are told of a second, for each who looks at one."""
EVENTS_S: Final = 1.0
"""Seconds after which the master is asked for new events; of very many only the newest are told."""
TAIL_LINES: Final = 1000
LINES_OF_AN_EVENT: Final = 500
OVER: Final = "your session is over: its token does not hold any more"
log = logging.getLogger(__name__)
_PING: Final = b": here\n\n"
_RETRY: Final = b"retry: 1000\n\n"


class EventStream(Response):
    """Sends events as they come, until they end or the browser has gone; nginx is asked not to hold them back."""

    media_type = "text/event-stream"

    def __init__(self, events: Events, media_type: str = "text/event-stream", **headers: str) -> None:
        super().__init__(media_type=media_type, headers={"x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pump = asyncio.create_task(self._pump(send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, gone):
                task.cancel()
            await asyncio.wait({pump, gone})
        if not pump.cancelled():
            pump.result()

    async def _pump(self, send: Send) -> None:
        try:
            async with aclosing(self._events) as events:
                async for each in events:
                    await send({"type": "http.response.body", "body": each, "more_body": True})
        except (AwayError, MasterRefusedError) as error:
            log.warning("a reply was broken off: %s", error)
            return  # without its end, so that no browser takes it for complete
        await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def before_end(session: Session, work: Awaitable[Result]) -> Result | None:
    """Return the result of ``work``, or None as soon as the session ends."""
    task, ended = asyncio.ensure_future(work), asyncio.ensure_future(session.ended.wait())
    try:
        await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, ended):
            each.cancel()
        await asyncio.wait({task, ended})
        if not task.cancelled():
            task.exception()  # so that an error of work that was given up is not reported as one that nobody handled


def over(session: Session) -> bytes:
    """Return the event by which a page knows that its session has ended."""
    return event("over", encoded({"why": session.why or "the session is over"}))


def of_topic(session: Session, feed: SharedFeed, wanted: Topic) -> EventStream:
    """Return the stream of a page that all viewers share. Raises `NoRoomError`."""
    session.check_room()
    feed.check_room(wanted)
    return EventStream(shared(session, feed, wanted))


async def shared(session: Session, feed: SharedFeed, wanted: Topic) -> Events:
    """Yield the frames of a page that all viewers share."""
    seen = 0
    with session.stream(), feed.viewed(wanted) as topic:
        yield _RETRY
        while (found := await before_end(session, topic.after(seen, PING_S))) is not None:
            seen, frame = found
            yield frame or _PING
        yield over(session)


def of_job(session: Session, master: Master, id: str) -> Events:
    """Yield a job whenever it changes, with why it waits while it does, as its viewer may see it."""
    return _again(session, lambda: _job_now(session, master, id))


def of_node(session: Session, master: Master, name: str) -> Events:
    """Yield a node whenever it is another than before."""
    return _again(session, lambda: _node_now(session, master, name))


def of_array(session: Session, master: Master, id: str, wanted: WantedTasks) -> Events:
    """Yield an array whenever it is another than before, as its viewer may see it."""
    return _again(session, lambda: _array_now(session, master, id, wanted))


def of_events(session: Session, master: Master, wanted: WantedEvents) -> Events:
    """Yield the newest events that are wanted, and then what is added, as far as its viewer may see it."""
    return _again(session, lambda: _events_now(session, master, wanted))


def of_usage(session: Session, ledger: UsageLedger, wanted: WantedUsage) -> Events:
    """Yield how far the sums are, the sums, and these again whenever they are asked for anew."""
    return _again(session, lambda: _usage_now(session, ledger, wanted))


def of_timeline(session: Session, answers: TimelineAnswers, wanted: WantedTimeline) -> Events:
    """Yield what of the timeline is wanted whenever it is another than before."""
    return _again(session, lambda: _timeline_now(session, answers, wanted))


def of_what_if(session: Session, replays: Replays, wanted: Sequence[WantedWhatIf]) -> Events:
    """Yield how far simulations are, and the result of each, or why there is none."""
    return _again(session, lambda: _what_if_now(session, replays, wanted))


async def _again(session: Session, begin: Callable[[], Events]) -> Events:
    """Yield the events of ``begin``, which is called again whenever the master was away, until the session ends."""
    with session.stream():
        yield _RETRY
        while not session.ended.is_set():
            try:
                async with aclosing(begin()) as events:
                    async for each in events:
                        yield each
            except AwayError as error:
                yield event("away", encoded({"words": str(error)}))
                await before_end(session, asyncio.sleep(RETRY_S))
            except MasterRefusedError as error:
                if error.status == 401:
                    session.end(OVER)
                    break
                yield event("refused", encoded({"words": str(error), "status": error.status}))
                if error.status != 429:
                    return
                await before_end(session, asyncio.sleep(2.0))
        yield over(session)


async def node_now(master: Master, name: str, token: str) -> client_pb2.NodeReply:
    """Return a node; the stream of the master is left after its first message. Raises `MasterRefusedError`."""
    request = client_pb2.NodeRequest(node=name)
    async with aclosing(master.stream("WatchNode", request, token)) as stream:
        reply: client_pb2.NodeReply | None = await anext(stream, None)
    if reply is None:
        raise MasterRefusedError(f"node {name} does not exist", 404)
    return reply


async def _node_now(session: Session, master: Master, name: str) -> Events:
    async def ask() -> tuple[str, float]:
        return encoded(node_facts.node_facts(await node_now(master, name, session.token))), NODE_S

    async for each in _changes(session, "node", ask):
        yield each


async def _array_now(session: Session, master: Master, id: str, wanted: WantedTasks) -> Events:
    async def ask() -> tuple[str, float]:
        found = await master.call("ShowArray", wanted.request(id), session.token)
        pause_s = max(ARRAY_S, len(found.indices) / TASKS_A_S)
        return encoded(array_facts.array_facts(found, wanted)), pause_s

    async for each in _changes(session, "array", ask):
        yield each


async def _timeline_now(session: Session, answers: TimelineAnswers, wanted: WantedTimeline) -> Events:
    async def ask() -> tuple[str, float]:
        facts, pause_s = await answers.answer(wanted)
        return encoded(facts), pause_s

    async for each in _changes(session, "timeline", ask):
        yield each


async def _changes(session: Session, name: str, ask: Callable[[], Awaitable[tuple[str, float]]]) -> Events:
    """Yield what ``ask`` returns whenever that is another text; it returns, too, when it is to be called again."""
    told, at = "", time.monotonic()
    while True:
        found, pause_s = await ask()
        if found != told:
            told, at = found, time.monotonic()
            yield event(name, found)
        elif time.monotonic() - at > PING_S:
            at = time.monotonic()
            yield _PING
        if await before_end(session, _pause(pause_s)) is None:
            return


async def _events_now(session: Session, master: Master, wanted: WantedEvents) -> Events:
    reply = await master.call("QueryEvents", wanted.request(), session.token)
    yield event("events", encoded(events_page.page_facts(reply)))
    at = time.monotonic()
    while 0.0 < wanted.until < time.time() and await before_end(session, _pause(PING_S)):
        yield _PING  # nothing is added to what is over
    while await before_end(session, _pause(EVENTS_S)):
        last = reply.last_sequence
        reply = await master.call("QueryEvents", wanted.request(after=last), session.token)
        if reply.events:
            at = time.monotonic()
            left_out = bool(reply.older_before)
            yield event("added", encoded({"events": events_page.event_facts(reply.events), "left_out": left_out}))
        elif time.monotonic() - at > PING_S:
            at = time.monotonic()
            yield _PING


async def _usage_now(session: Session, ledger: UsageLedger, wanted: WantedUsage) -> Events:
    while True:
        async with aclosing(ledger.replies(wanted)) as replies:
            while (found := await before_end(session, _reply_of(replies))) is not None:
                if isinstance(found, UsageSums):
                    facts = usage_page.usage_facts(wanted, found.edges, found.by_key, found.by_day)
                    yield event("usage", encoded(facts))
                    break
                yield event("progress", encoded({"done": found}))
        while (wait_s := ledger.wait_s(wanted)) > 0:
            if await before_end(session, _pause(min(PING_S, wait_s))) is None:
                return
            yield _PING
        if session.ended.is_set():
            return


async def _reply_of(replies: AsyncGenerator[Result, None]) -> Result | None:
    return await anext(replies, None)


async def _what_if_now(session: Session, replays: Replays, wanted: Sequence[WantedWhatIf]) -> Events:
    if mistake := mistake_of(wanted):
        yield event("failed", encoded({"words": mistake}))
    else:
        for number in range(len(wanted)):
            async with aclosing(_simulated(session, replays, wanted, number)) as events:
                async for each in events:
                    yield each
    while await before_end(session, _pause(PING_S)):
        yield _PING


async def _simulated(session: Session, replays: Replays, wanted: Sequence[WantedWhatIf], number: int) -> Events:
    """Yield how far all simulations are while the one with this number runs, and what came of it."""
    try:
        async with aclosing(replays.replies(session, wanted[number])) as replies:
            while (found := await before_end(session, _reply_of(replies))) is not None:
                if isinstance(found, ReplayProgress):
                    done = (number + found.done) / len(wanted)
                    which = f" ({number + 1} of {len(wanted)})" if len(wanted) > 1 else ""
                    yield event("progress", encoded({"words": f"{found.words}{which}", "done": done}))
                else:
                    yield event("result", encoded({"number": number, "of": len(wanted)} | found))
    except ReplayFailedError as error:
        told = {"words": str(error), "number": number, "of": len(wanted), "label": wanted[number].label}
        yield event("failed", encoded(told))


async def _job_now(session: Session, master: Master, id: str) -> Events:
    """Do the same over one connection to the master."""
    dirty = asyncio.Event()
    watch = asyncio.create_task(_mark(master, id, session.token, dirty))
    explained: tuple[float, Any] = (0.0, None)
    dirty.set()
    try:
        while True:
            woken = await before_end(session, _set_within(dirty, PING_S))
            if woken is None:
                return
            if watch.done():
                watch.result()
            dirty.clear()
            job = await master.call("ShowJob", client_pb2.JobRequest(job_id=id), session.token)
            yield event("job", encoded(job_facts.job_facts(job, time.time())))
            waits, key = state_of(job) in WAITING, (state_of(job), job.reason, job.held_by)
            due = time.monotonic() - explained[0] >= EXPLAINED_S or key != explained[1]
            if waits and due and not job.HasField("tasks"):
                explained = (time.monotonic(), key)
                request = client_pb2.ExplainRequest(job_id=id)
                found = await master.call("Explain", request, session.token)
                yield event("explained", encoded(job_facts.explanation_facts(found, time.time())))
            if state_of(job) in FINISHED and watch.done():
                yield event("final", "{}")
                while await before_end(session, _pause(PING_S)):
                    yield _PING
                return
            await asyncio.sleep(PAUSE_S)
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError, AwayError, MasterRefusedError):
            await watch


async def _mark(master: Master, id: str, token: str, dirty: asyncio.Event) -> None:
    try:
        async with aclosing(master.stream("WatchJobs", client_pb2.WatchJobsRequest(job_ids=[id]), token)) as jobs:
            async for _ in jobs:
                dirty.set()
    finally:
        dirty.set()


async def _set_within(wanted: asyncio.Event, at_most_s: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await wanted.wait()
    return True


async def _pause(seconds: float) -> bool:
    await asyncio.sleep(seconds)
    return True


async def of_log(session: Session, master: Master, request: client_pb2.ReadLogsRequest) -> Events:
    """Yield the last lines of a log, and what follows, as far as its viewer may read it."""
    with session.stream():
        yield _RETRY
        while not session.ended.is_set():
            try:
                yield event("begin", "{}")  # whatever was shown of this log is void
                async with aclosing(_log_now(session, master, request)) as events:
                    async for each in events:
                        yield each
                if not session.ended.is_set():
                    yield event("finished", "{}")
                    while await before_end(session, _pause(PING_S)):
                        yield _PING
            except AwayError as error:
                yield event("away", encoded({"words": str(error)}))
                await before_end(session, asyncio.sleep(4 * RETRY_S))
            except MasterRefusedError as error:
                if error.status == 401:
                    session.end(OVER)
                    break
                yield event("refused", encoded({"words": str(error), "status": error.status}))
                return
        yield over(session)


async def of_file(session: Session, first: client_pb2.LogChunk | None, rest: Chunks) -> Events:
    """Yield all of a log as bytes. Raises `MasterRefusedError` if the session ends before."""
    chunk = first
    with session.stream():
        async with aclosing(rest):
            while chunk is not None:
                yield chunk.data
                chunk = await before_end(session, _next_in(rest))
        if session.ended.is_set():
            raise MasterRefusedError(session.why, 401)


async def _next_in(chunks: Chunks) -> client_pb2.LogChunk | None:
    return await anext(chunks, None)


async def _log_now(session: Session, master: Master, request: client_pb2.ReadLogsRequest) -> Events:
    """Do the same over one stream of the master; end when that does."""
    chunks: asyncio.Queue[client_pb2.LogChunk | None] = asyncio.Queue(4)
    reading = asyncio.create_task(_read(master, request, session.token, chunks))
    lines, attempt, after = Lines(), 0, 0
    try:
        while True:
            found = await before_end(session, _next_of(chunks, PING_S))
            if found is None:
                return
            if not found:
                yield _PING
                continue
            chunk = found[0]
            if chunk is None:
                await reading  # raises what ended it
                return
            gap = chunk.attempt == attempt and chunk.offset > after
            if chunk.attempt != attempt:
                lines, attempt = Lines(), chunk.attempt
            after = chunk.next
            whole, rest = lines.take(chunk.data)
            for start in range(0, max(1, len(whole)), LINES_OF_AN_EVENT):
                last = start + LINES_OF_AN_EVENT >= len(whole)
                told = {
                    "attempt": attempt,
                    "gap": gap and not start,
                    "lines": whole[start : start + LINES_OF_AN_EVENT],
                    "open": rest if last else None,
                }
                yield event("log", encoded(told))
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError, AwayError, MasterRefusedError):
            await reading


async def _read(
    master: Master, request: client_pb2.ReadLogsRequest, token: str, chunks: "asyncio.Queue[client_pb2.LogChunk | None]"
) -> None:
    """Read a log into ``chunks``, no faster than they are taken out."""
    try:
        async with aclosing(master.stream("ReadLogs", request, token)) as found:
            async for chunk in found:
                await chunks.put(chunk)
    finally:
        with suppress(asyncio.CancelledError):
            await chunks.put(None)


async def _next_of(
    chunks: "asyncio.Queue[client_pb2.LogChunk | None]", at_most_s: float
) -> tuple[client_pb2.LogChunk | None, ...]:
    """Return the next chunk alone, or nothing if there was none in time."""
    try:
        async with asyncio.timeout(at_most_s):
            return (await chunks.get(),)
    except TimeoutError:
        return ()
