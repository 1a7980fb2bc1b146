"""Streams of events: that a page hears of each often enough to know that it is there."""

import asyncio
import time
from contextlib import aclosing

import pytest
from ebbtide_protos.v1 import client_pb2
from ebbtide_web import streams
from ebbtide_web.access.sessions import Session
from ebbtide_web.board.shared_page import event
from ebbtide_web.pages import log as log_page
from ebbtide_web.reach import MasterRefusedError

from tests.dashboard.stage import a_stage
from tests.master.world import DEADLINE_S


async def test_what_the_master_refuses_is_asked_for_again_on_the_same_stream_and_shown_once_it_may_be_seen(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(streams, "REFUSED_S", 0.05)
    monkeypatch.setattr(streams, "PING_S", 0.01)
    async with a_stage(tmp_path, monkeypatch) as stage:
        await stage.logged_in("ann")
        (session,) = stage.dashboard.sessions.all()
        answers = [MasterRefusedError("job 1 is bob's", 403), MasterRefusedError("job 1 is bob's", 403), None]

        async def begin():
            if (refused := answers.pop(0)) is not None:
                raise refused
            yield event("told", "1")
            await asyncio.Event().wait()

        found = list[bytes]()
        async with aclosing(streams.again(session, begin)._events) as events:
            while event("told", "1") not in found:
                found.append(await anext(events))
        assert [each.startswith(b"event: refused") for each in found].count(True) == 2
        assert streams.PING in found, "it is known to be there meanwhile"


@pytest.mark.timeout(30)
async def test_a_stream_without_news_says_again_and_again_that_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "PING_S", 0.01)
    async with a_stage(tmp_path, monkeypatch) as stage:
        await stage.logged_in("ann")
        (session,) = stage.dashboard.sessions.all()
        ended = asyncio.Event()

        async def begin():
            try:
                yield event("told", "1")
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with aclosing(streams.again(session, begin)._events) as events:
            found = [await anext(events) for _ in range(4)]
            assert found == [streams.BEGIN, event("told", "1"), streams.PING, streams.PING]
        assert ended.is_set(), "what it was waiting for is given up with it"


async def test_a_stream_begins_by_saying_that_it_is_there(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        for path in ("/stream/cluster", "/stream/events"):
            reader, writer, _, _ = await ann.send("GET", path)
            await reader.readuntil(b"event: here\ndata: {}\n\n")
            writer.close()


class PrintingMaster:
    """Sends a log as fast as it is read."""

    def __init__(self) -> None:
        self.sent = 0

    async def stream(self, method, request, token):
        while True:
            self.sent += 1
            yield client_pb2.LogChunk(attempt=1, data=b"more\n", offset=5 * self.sent - 5, next=5 * self.sent)


async def test_the_log_of_a_job_that_prints_more_than_is_read_ends_when_its_page_is_left():
    session, master = Session("ann", "user", "secret", "id", time.monotonic() + 60), PrintingMaster()
    log = streams.again(session, lambda: log_page._log_now(session, master, client_pb2.ReadLogsRequest()))._events
    while not (await anext(log)).startswith(b"event: log"):
        pass
    async with asyncio.timeout(DEADLINE_S):
        while master.sent < 6:  # one is shown, four wait, and the next one has no room
            await asyncio.sleep(0)
    leaving = asyncio.create_task(log.aclose())
    await asyncio.wait({leaving}, timeout=DEADLINE_S)
    assert (leaving.done(), session.streams) == (True, 0)
