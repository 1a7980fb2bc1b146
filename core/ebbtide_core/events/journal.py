"""Defines the events about the journal itself: its restore and its compaction (see `ebbtide_core.events`)."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen


@frozen
class JournalRestored(Event):
    """The journal up to here was restored from a backup of Unix time ``taken``.

    The next ``skipped`` ids of jobs are not given out: jobs that were submitted after the backup may have them.
    """

    taken: float
    skipped: int


@frozen
class JobsForgotten(Event):
    """``count`` jobs were submitted here, and nothing else is known of them (see `lifecycle.forgetting`)."""

    count: int


@frozen
class RunForgotten(Event):
    """A forgotten job ended here; this event keeps what is known of its user's script from it.

    ``work_s`` (seconds on one GPU) and ``ran_s`` are None unless the job completed. ``peak_bytes`` is what it used of
    one GPU, 0 if not known; ``tells`` says that it computed for long enough to have reached its peak.
    """

    user: str
    script: str
    work_s: float | None = None
    ran_s: float | None = None
    peak_bytes: int = 0
    tells: bool = False


@frozen
class RateForgotten(Event):
    """The measured speed of the forgotten job ``was``; other fields are as in `ebbtide_core.events.RateMeasured`."""

    was: str
    user: str
    script: str
    share: int
    nodes: int
    alone: bool
    steps_per_s: float
    samples: int
    model: str = ""


@frozen
class JournalCompacted(Event):
    """Compaction removed ``count`` jobs from the journal, all of which had ended before Unix time ``before``."""

    before: float
    count: int
