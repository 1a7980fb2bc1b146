"""What of the journal the page of the events shows, and the facts of each event. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from ebbtide_core.events import EVENT_TYPES
from ebbtide_protos.v1 import client_pb2

from ebbtide_web.listed import moment, words

PAGE: Final = 200
"""Events of one page."""
_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


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
