"""Makes the notice that is sent when something happens to a job; docs/how-to/notifications.md has the schema."""

import json
from dataclasses import dataclass
from typing import Any, Final

from ebbtide_core.job.job import Job
from ebbtide_core.model.notice_rules import Moment

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice. ``key`` is unique, and the same whenever the notice is sent again; ``time`` is in Unix seconds."""

    key: str
    sequence: int
    time: float
    moment: str
    text: str
    detail: str
    job: dict[str, Any]

    def body(self) -> bytes:
        """Return the notice as JSON."""
        content = {
            "version": VERSION,
            "key": self.key,
            "sequence": self.sequence,
            "time": self.time,
            "event": self.moment,
            "text": self.text,
            "detail": self.detail,
            "job": self.job or None,
        }
        return json.dumps(content).encode()


def notice_of(journal: str, sequence: int, time: float, job: Job, moment: Moment, detail: str) -> Notice:
    """Return the notice that ``moment`` came for ``job`` with line ``sequence`` of the journal.

    ``journal`` is a name that no other journal has, nor this one for lines that a restore replaced.
    """
    facts = {
        "id": job.id,
        "name": job.spec.name,
        "user": job.user,
        "state": job.state.value,
        "attempt": len(job.attempts),
        "exit_code": job.exit_code if job.end is not None else None,
    }
    named = f"job {job.id} ({job.spec.name})" if job.spec.name else f"job {job.id}"
    verb = {Moment.LOG: "", Moment.HELD: "", Moment.UNSAVED: ""}.get(moment, f"{moment.value}: ")
    text = f"{named} of {job.user} {verb}{detail}" if detail != moment.value else f"{named} of {job.user} {detail}"
    return Notice(f"{journal}-{sequence}-{moment.value}", sequence, time, moment.value, text, detail, facts)
