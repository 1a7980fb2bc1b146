"""What happens to the journal itself; see `ebbtide_core.events`."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen


@frozen
class JournalRestored(Event):
    """The journal up to here was put back from a backup of Unix time ``taken``.

    ``skipped`` ids are not given out: they may be those of jobs that were submitted since.
    """

    taken: float
    skipped: int


@frozen
class JobsForgotten(Event):
    """So many jobs were submitted here of which nothing else is known any more; see `lifecycle.forgetting`."""

    count: int


@frozen
class RunForgotten(Event):
    """A job that is forgotten was over: what is still known of it is known of its user's script.

    ``work_s`` (seconds on one GPU) and ``ran_s`` are None unless it completed, ``peak_bytes`` of one GPU 0 if not
    known; ``tells``: it computed for long enough for that to be all that it needs.
    """

    user: str
    script: str
    work_s: float | None = None
    ran_s: float | None = None
    peak_bytes: int = 0
    tells: bool = False


@frozen
class RateForgotten(Event):
    """The speed of a job that is forgotten; see `ebbtide_core.events.RateMeasured`."""

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
    """``count`` jobs that had ended before Unix time ``before`` were forgotten."""

    before: float
    count: int
