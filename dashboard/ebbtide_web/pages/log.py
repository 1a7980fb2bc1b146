"""The log of a job, as lines of plain text with a few allowed styles, or as a file.

Of terminal codes only colours and weight are understood; everything else of them is dropped. A carriage return begins
the line anew, as a progress bar means it.
"""

import asyncio
import codecs
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final

from ebbtide_protos.quantities import printable
from ebbtide_protos.v1 import client_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.access.sessions import Session
from ebbtide_web.answers import BadInputError, problem
from ebbtide_web.board.shared_page import encoded, event
from ebbtide_web.pages.page import Page, PageRoute
from ebbtide_web.pages.query import check_id
from ebbtide_web.reach import AwayError, Master, MasterRefusedError
from ebbtide_web.streams import PING, PING_S, Events, before_end, next_of, pause

Chunks = AsyncGenerator[client_pb2.LogChunk, None]
TAIL_LINES: Final = 1000
LINES_OF_AN_EVENT: Final = 500
AGAIN_S: Final = 2.0
"""Seconds after which a log is read again that could not be read."""
TOGETHER_S: Final = 0.25
"""Seconds for which what a job prints is gathered, because a browser lays out its page anew whenever some comes."""
LONGEST_LINE: Final = 4000
"""Characters of a line that are shown."""
MOST_STYLES: Final = 200
"""Changes of style in one line that are shown."""

_CODES: Final = re.compile(
    r"\x1b\[([0-9;]*)m"  # colours and weight
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
)
_WEIGHTS: Final = {1: "b", 2: "d", 3: "i", 4: "u"}

Line = list[list[str]]
"""Pieces of a line: the text, and the names of its styles."""


class LogPage(Page):
    """Shows the log of a job on its page, and sends it as a file."""

    def routes(self) -> Sequence[PageRoute]:
        """Return the routes of the log."""
        return PageRoute("/jobs/{id}/log.txt", self.file), PageRoute("/stream/jobs/{id}/log", self.stream)

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream the last lines of a log, and what follows, as far as its viewer may read it."""
        wanted = _wanted(request)
        wanted.follow, wanted.tail = True, TAIL_LINES
        return streams.again(session, lambda: _log_now(session, self._dashboard.master, wanted), AGAIN_S)

    async def file(self, request: Request, session: Session) -> Response:
        """Send all of a log as a file, as the job printed it."""
        wanted = _wanted(request)
        session.check_room()
        stream = self._dashboard.master.stream("ReadLogs", wanted, session.token)
        try:
            first = await anext(stream, None)  # a refusal is an answer of its own
        except AwayError as error:
            return problem(f"the log cannot be read now: {error}", 503)
        kept = {"content-disposition": f'attachment; filename="job-{wanted.job_id}.log"'}
        return streams.EventStream(_file(session, first, stream), "text/plain; charset=utf-8", **kept)


def _wanted(request: Request) -> client_pb2.ReadLogsRequest:
    wanted = client_pb2.ReadLogsRequest(job_id=check_id(request.path_params["id"]))
    for name in ("attempt", "rank"):
        if text := request.query_params.get(name):
            if not (text.isascii() and text.isdigit() and len(text) < 7):
                raise BadInputError(f"{name}: is not a number")
            setattr(wanted, name, int(text))
    return wanted


async def _file(session: Session, first: client_pb2.LogChunk | None, rest: Chunks) -> Events:
    """Yield all of a log as bytes. Raises `MasterRefusedError` if the session ends before."""
    chunk = first
    with session.stream():
        async with aclosing(rest):
            while chunk is not None:
                yield chunk.data
                chunk = await before_end(session, next_of(rest))
        if session.ended.is_set():
            raise MasterRefusedError(session.why, 401)


async def _log_now(session: Session, master: Master, request: client_pb2.ReadLogsRequest) -> Events:
    """Yield a log over one stream of the master, and that it is complete once that ends.

    What was shown of the log before is void as soon as the master answers, and not before.
    """
    chunks: asyncio.Queue[client_pb2.LogChunk | None] = asyncio.Queue(4)
    reading = asyncio.create_task(_read(master, request, session.token, chunks))
    lines, attempt, after, begun = Lines(), 0, 0, False
    try:
        while (found := await before_end(session, _next_of(chunks, PING_S))) is not None:
            if not found:
                yield PING
                continue
            chunk = found[0]
            if chunk is None:
                await reading  # raises what ended it
            if not begun:
                yield event("begin", "{}")
            begun = True
            if chunk is None:
                yield event("finished", "{}")
                break
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
            if chunks.empty() and await before_end(session, pause(TOGETHER_S)) is None:
                break
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError, AwayError, MasterRefusedError):
            await reading
    while await before_end(session, pause(PING_S)):
        yield PING


async def _read(
    master: Master, request: client_pb2.ReadLogsRequest, token: str, chunks: "asyncio.Queue[client_pb2.LogChunk | None]"
) -> None:
    """Read a log into ``chunks``, no faster than they are taken out, and then None, unless it is given up."""
    try:
        async with aclosing(master.stream("ReadLogs", request, token)) as found:
            async for chunk in found:
                await chunks.put(chunk)
    except Exception:
        await chunks.put(None)
        raise
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


@dataclass(slots=True)
class Lines:
    """Reads bytes as they come; a line that has no end yet is told again when more of it comes."""

    _decode: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    _rest: str = ""
    _style: tuple[str, str] = ("", "")

    def take(self, data: bytes) -> tuple[list[Line], Line | None]:
        """Return the lines that are complete now, and the one that is not; None if there is none."""
        *whole, rest = (self._rest + self._decode.decode(data)).split("\n")
        self._rest = rest[-2 * LONGEST_LINE :]
        lines = [self._line(text) for text in whole]
        before = self._style
        open_line = self._line(self._rest) if self._rest else None
        self._style = before  # it is read again with what follows
        return lines, open_line

    def _line(self, text: str) -> Line:
        text = text.removesuffix("\r").rpartition("\r")[2]
        pieces: Line = []
        start, room = 0, LONGEST_LINE
        for found in _CODES.finditer(text):
            room -= self._add(pieces, text[start : found.start()], room)
            start = found.end()
            if found[1] is not None:
                self._change(found[1])
        self._add(pieces, text[start:], room)
        return pieces

    def _add(self, pieces: Line, text: str, room: int) -> int:
        shown = printable(text.replace("\t", "    "))[: max(0, room)]
        if shown and len(pieces) < MOST_STYLES:
            style = " ".join(filter(None, self._style))
            if pieces and pieces[-1][1] == style:
                pieces[-1][0] += shown
            else:
                pieces.append([shown, style])
        return len(shown)

    def _change(self, codes: str) -> None:
        colour, weight = self._style
        for text in codes.split(";")[:16]:
            code = int(text[:4]) if text else 0
            if code == 0:
                colour, weight = "", ""
            elif code in _WEIGHTS:
                weight = _WEIGHTS[code]
            elif code == 22:
                weight = ""
            elif 30 <= code <= 37 or 90 <= code <= 97:
                colour = f"c{code % 10}"
            elif code == 39:
                colour = ""
            elif code in (38, 48):
                break  # colours of a palette: what follows is no code
        self._style = (colour, weight)
