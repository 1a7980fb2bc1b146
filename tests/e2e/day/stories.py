"""The waiting periods of a job, and what its story says of each."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.e2e.day.evidence import Entry

BEGINS = ("JobSubmitted", "AttemptFreed", "AttemptRefused")
ENDS = ("AttemptPlaced", "CancelRequested", "DependencyFailed")
PAUSES = ("HoldRequested", "SuspendRequested", "JobHeld")
GOES_ON = ("ReleaseRequested", "ResumeRequested")
UNTIL = "(until then: "


@dataclass(frozen=True)
class Wait:
    """A job that had no room from ``begins`` to ``ends``; ``why`` is what its story says of it, empty if nothing."""

    begins: Entry
    ends: Entry
    why: str

    @property
    def seconds(self) -> float:
        """How long."""
        return self.ends.at - self.begins.at


def waits(story: list[Entry]) -> Iterator[Wait]:
    """Every time that the job of ``story`` waited: in the queue, or because somebody held or suspended it."""
    begun: Entry | None = None
    pause: Entry | None = None
    claimed = ""
    for entry in story:
        if entry.kind == "RoomClaimed":
            claimed = _until(entry.text) or claimed
        goes_on = entry.kind in GOES_ON and pause is not None  # who is not held may be released, too
        ends = entry.kind in ENDS or entry.kind in PAUSES or goes_on
        if begun is not None and ends:
            own = entry.text if entry.kind == "DependencyFailed" else ""
            yield Wait(begun, entry, pause.text if pause is not None else _until(entry.text) or claimed or own)
            begun, claimed = None, ""
        if entry.kind in PAUSES:
            pause = entry
        elif entry.kind in GOES_ON:
            pause = None
        if entry.kind in BEGINS or (ends and entry.kind not in ENDS and _is_off(story, entry)):
            begun = entry


def _is_off(story: list[Entry], until: Entry) -> bool:
    """Whether it had no room at that time."""
    last = ""
    for entry in story[: story.index(until)]:
        last = entry.kind if entry.kind in ("AttemptPlaced", "AttemptFreed", "AttemptRefused") else last
    return last != "AttemptPlaced"


def _until(text: str) -> str:
    """What comes after "until then:"."""
    _, found, rest = text.partition(UNTIL)
    return rest.removesuffix(")") if found else ""
