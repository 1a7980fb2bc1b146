"""Streams of server-sent events: of a page that all viewers share, and of what is asked for again and again."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

from starlette.responses import Response

from ebbtide_web.access.guard import Receive, Scope, Send
from ebbtide_web.access.sessions import OVER, NoRoomError, Session
from ebbtide_web.board.feed import BoardTopic, SharedFeed
from ebbtide_web.board.shared_page import encoded, event
from ebbtide_web.reach import AwayError, MasterRefusedError

Result = TypeVar("Result")
Events = AsyncGenerator[bytes, None]

PING_S: Final = 15.0
"""Seconds after which a stream without news says that it is there; a page gives it up after three times as many."""
RETRY_S: Final = 0.5
BUSY_S: Final = 2.0
"""Seconds after which is asked again what the master had no room for."""
REFUSED_S: Final = 30.0
"""Seconds after which is asked again what the master refused: perhaps it may be seen by then."""
PING: Final = event("here", "{}")
BEGIN: Final = b"retry: 1000\n\n" + PING
log = logging.getLogger(__name__)


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
        except (AwayError, MasterRefusedError, NoRoomError) as error:
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


def of_topic(session: Session, feed: SharedFeed, wanted: BoardTopic) -> EventStream:
    """Return the stream of a page that all viewers share. Raises `NoRoomError`."""
    session.check_room()
    feed.check_room(session.user, wanted)
    return EventStream(_shared(session, feed, wanted))


async def _shared(session: Session, feed: SharedFeed, wanted: BoardTopic) -> Events:
    seen = 0
    with session.stream(), feed.viewed(session.user, wanted) as topic:
        yield BEGIN
        while (found := await before_end(session, topic.after(seen, PING_S))) is not None:
            seen, frame = found
            yield frame or PING
        yield over(session)


def again(session: Session, begin: Callable[[], Events], retry_s: float = RETRY_S) -> EventStream:
    """Return the stream of the events of ``begin``, which is called again whenever the master was away or refused.

    That is tried every ``retry_s`` or `REFUSED_S` seconds, until the session ends. Raises `NoRoomError`.
    """
    session.check_room()
    return EventStream(_pinged(_again(session, begin, retry_s)))


async def _again(session: Session, begin: Callable[[], Events], retry_s: float) -> Events:
    with session.stream():
        yield BEGIN
        while not session.ended.is_set():
            try:
                async with aclosing(begin()) as events:
                    async for each in events:
                        yield each
            except AwayError as error:
                yield event("away", encoded({"words": str(error)}))
                await before_end(session, asyncio.sleep(retry_s))
            except MasterRefusedError as error:
                if error.status == 401:
                    session.end(OVER)
                    break
                yield event("refused", encoded({"words": str(error), "status": error.status}))
                await before_end(session, asyncio.sleep(BUSY_S if error.status == 429 else REFUSED_S))
        yield over(session)


async def _pinged(events: Events) -> Events:
    """Yield the events, and that the stream is there whenever none has come for `PING_S`."""
    async with aclosing(events):
        while True:
            coming = asyncio.ensure_future(next_of(events))
            try:
                while not (await asyncio.wait({coming}, timeout=PING_S))[0]:
                    yield PING
            finally:
                coming.cancel()
                await asyncio.wait({coming})
            if (found := coming.result()) is None:
                return
            yield found


async def changes(session: Session, name: str, ask: Callable[[], Awaitable[tuple[str, float]]]) -> Events:
    """Yield what ``ask`` returns whenever that is another text; it returns, too, when it is to be called again."""
    told, at = "", time.monotonic()
    while True:
        found, pause_s = await ask()
        if found != told:
            told, at = found, time.monotonic()
            yield event(name, found)
        elif time.monotonic() - at > PING_S:
            at = time.monotonic()
            yield PING
        if await before_end(session, pause(pause_s)) is None:
            return


async def pause(seconds: float) -> bool:
    """Wait; return True, so that `before_end` of it says whether the session goes on."""
    await asyncio.sleep(seconds)
    return True


async def next_of(replies: AsyncGenerator[Result, None]) -> Result | None:
    """Return the next of the replies, or None if there is none left."""
    return await anext(replies, None)
