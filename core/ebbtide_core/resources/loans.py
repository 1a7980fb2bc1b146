"""Keeps which nodes are on loan and when they end, so that no attempt is placed where it could not leave in time.

A job that can be suspended needs a node for at least twice the time that it may take to leave, so that it computes at
least as long as it takes to leave. A job whose time limit ends sooner needs the node until then. Any other job that
cannot leave a node never fits on one that ends. To policies, a node that ends too soon for a job is a node that the job
may not use at all (`ebbtide_core.resources.eligibility`), so no policy has a rule of its own for it.
"""

import math
from bisect import bisect_left, bisect_right, insort
from itertools import islice
from operator import itemgetter
from typing import Final

from ebbtide_core.estimates.rounding import rounded_up_s
from ebbtide_core.events.words import duration
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import Loan, NodeId, SuspendMode
from ebbtide_core.resources.bookings import lead_s

ROUNDING_S: Final = 1e-6
"""Seconds. Differences of Unix times are off by less than this."""


def can_leave(job: Job) -> bool:
    """Return whether the job can be suspended and leaves nothing on its node then."""
    return job.spec.suspend is SuspendMode.CHECKPOINT


def needed_s(job: Job, now: float) -> float:
    """Return for how many seconds ``job`` needs a node that it starts on at Unix time ``now``; infinite: for ever."""
    limit, lead = job.spec.time_limit_s, lead_s(job)
    ends_s = math.inf if limit is None else max(0.0, limit - job.running_s(now)) + lead
    return min(ends_s, 2 * lead) if can_leave(job) else ends_s


def rounded_need_s(job: Job) -> float:
    """Return for how many seconds ``job``, which waits, needs a node, rounded up, so that few jobs differ by it."""
    return rounded_up_s(needed_s(job, 0.0))


class Loans:
    """The usable nodes of a pool that end, the soonest first; ``now`` is the Unix time of the pass under way.

    ``changes_at`` is the first Unix time at which time alone changes an answer that was given in this pass.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.changes_at = math.inf
        self._ends: list[tuple[float, NodeId]] = []
        self._known: dict[NodeId, float] = {}

    def __bool__(self) -> bool:
        return bool(self._ends)

    def note(self, node: NodeId, loan: Loan | None) -> None:
        """Note how long ``node`` stays; None: it stays for good, or is not usable."""
        until, known = None if loan is None else loan.until, self._known.get(node)
        if until == known:
            return
        if known is not None:
            del self._ends[bisect_left(self._ends, (known, node))], self._known[node]
        if until is not None:
            insort(self._ends, (until, node))
            self._known[node] = until

    def too_short(self, job: Job) -> int:
        """Return the number of nodes that end before ``job`` could have left them; these are the first ones."""
        if not self._ends:
            return 0
        needed = needed_s(job, self.now)
        count = bisect_right(self._ends, self.now + needed + ROUNDING_S, key=itemgetter(0))
        if count < len(self._ends):
            self.changes_at = min(self.changes_at, self._ends[count][0] - needed)
        return count

    def first(self, count: int) -> frozenset[NodeId]:
        """Return the ``count`` nodes that end first."""
        return frozenset([node for _, node in islice(self._ends, count)])

    def obstacle(self, job: Job, node: NodeId) -> str:
        """Return in words why ``job`` cannot start on ``node`` any more because it ends; empty if it can."""
        until = self._known.get(node)
        if until is None or until > self.now + (needed := needed_s(job, self.now)) + ROUNDING_S:
            return ""
        return f"it ends too soon: {_need(job, needed)}"


def _need(job: Job, needed: float) -> str:
    if needed == math.inf:
        return "the job cannot be suspended, and has no time limit"
    if can_leave(job) and needed == 2 * lead_s(job):
        return f"the job needs {duration(needed)} there to compute, save and leave"
    return f"the job may take {duration(needed)}"
