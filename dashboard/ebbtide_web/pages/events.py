"""The page of the events: the newest of the journal, what is added, and the pages of older ones."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from ebbtide_core.events import EVENT_TYPES
from ebbtide_protos.v1 import client_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.access.sessions import Session
from ebbtide_web.answers import BadInputError, answer
from ebbtide_web.board.shared_page import encoded, event
from ebbtide_web.pages.page import Page, PageRoute
from ebbtide_web.pages.query import moment, words
from ebbtide_web.reach import Master
from ebbtide_web.streams import PING, PING_S, Events, before_end, pause

EVENTS_S: Final = 1.0
"""Seconds after which the master is asked for new events; of very many only the newest are told."""
MOST_DIGITS: Final = 18
PAGE: Final = 200
"""Events of one page."""
_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


class EventsPage(Page):
    """Shows the events. Each viewer is shown what the master shows them."""

    def routes(self) -> Sequence[PageRoute]:
        """Return the routes of the page."""
        return (
            PageRoute("/events", self.show),
            PageRoute("/events/older", self.older),
            PageRoute("/stream/events", self.stream),
        )

    async def show(self, request: Request, session: Session) -> Response:
        """Show the page."""
        kinds = {subject: [(kind, in_words(kind)) for kind in names] for subject, names in SUBJECTS.items()}
        wanted = WantedEvents.read(request.query_params)
        return self._templates.page("events.html", session, wanted=wanted, kinds=kinds)

    async def older(self, request: Request, session: Session) -> Response:
        """Return the page of events before one."""
        before = request.query_params.get("before", "")
        if not (before.isascii() and before.isdigit()) or len(before) > MOST_DIGITS:
            raise BadInputError("before: is not the number of an event")
        wanted = WantedEvents.read(request.query_params).request(before=int(before))
        return answer(page_facts(await self._dashboard.call(session, "QueryEvents", wanted)))

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream the newest events, and what is added."""
        wanted = WantedEvents.read(request.query_params)
        return streams.again(session, lambda: _events_now(session, self._dashboard.master, wanted))


async def _events_now(session: Session, master: Master, wanted: "WantedEvents") -> Events:
    """Yield the newest events that are wanted, and then what is added, as far as its viewer may see it."""
    reply = await master.call("QueryEvents", wanted.request(), session.token)
    yield event("events", encoded(page_facts(reply)))
    at = time.monotonic()
    while 0.0 < wanted.until < time.time() and await before_end(session, pause(PING_S)):
        yield PING  # nothing is added to what is over
    while await before_end(session, pause(EVENTS_S)):
        last = reply.last_sequence
        reply = await master.call("QueryEvents", wanted.request(after=last), session.token)
        if reply.events:
            at = time.monotonic()
            left_out = bool(reply.older_before)
            yield event("added", encoded({"events": event_facts(reply.events), "left_out": left_out}))
        elif time.monotonic() - at > PING_S:
            at = time.monotonic()
            yield PING


def _subject(kind: str) -> str:
    names = {field.name for field in fields(EVENT_TYPES[kind])}
    return "jobs" if "job" in names else "nodes" if "node" in names else "cluster"


SUBJECTS: Final[Mapping[str, tuple[str, ...]]] = {
    subject: tuple(sorted(kind for kind in EVENT_TYPES if _subject(kind) == subject))
    for subject in ("jobs", "nodes", "cluster")
}
"""The kinds of events that are about a job, about a node and no job, and about neither."""


def in_words(kind: str) -> str:
    """Return a kind as people write it: ``AttemptPlaced`` is "Attempt placed"."""
    first, *rest = _WORD.split(kind)
    return " ".join([first, *(word if word.isupper() else word.lower() for word in rest)])


@dataclass(frozen=True, slots=True)
class WantedEvents:
    """Which events a page shows, as its address says it; times are Unix seconds, 0 if there is no bound."""

    about: str = ""
    kind: str = ""
    job: str = ""
    node: str = ""
    since: float = 0.0
    until: float = 0.0

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "WantedEvents":
        """Read the query of an address; what makes no sense is as if it were not there."""
        return cls(
            about=query.get("about", "") if query.get("about") in SUBJECTS else "",
            kind=query.get("kind", "") if query.get("kind") in EVENT_TYPES else "",
            job=words(query, "job"),
            node=words(query, "node"),
            since=moment(query, "since"),
            until=moment(query, "until"),
        )

    def request(self, before: int = 0, after: int = 0) -> client_pb2.QueryEventsRequest:
        """Return the question to the master for one page."""
        kinds = (self.kind,) if self.kind else SUBJECTS.get(self.about, ())
        return client_pb2.QueryEventsRequest(
            before_sequence=before,
            after_sequence=after,
            since=self.since,
            until=self.until,
            kinds=kinds,
            job_id=self.job,
            node=self.node,
            limit=PAGE,
        )


def page_facts(reply: client_pb2.QueryEventsReply) -> dict[str, Any]:
    """Return one page of events, the newest first, and where the next one begins."""
    return {
        "events": event_facts(reply.events),
        "older": reply.older_before or None,
        "searched": reply.searched_to or None,
    }


def event_facts(events: Iterable[client_pb2.Event]) -> list[dict[str, Any]]:
    """Return what is shown of events; the words of one that somebody else's job is about may be empty."""
    return [
        {
            "id": event.sequence,
            "time": event.time,
            "kind": in_words(event.kind),
            "job": event.job_id,
            "node": event.node,
            "text": event.text,
        }
        for event in events
    ]
