"""Keeps what passes of `tide` need to know of a pool, from pass to pass."""

from bisect import bisect_left, insort
from typing import Final, NamedTuple

from ebbtide_core.estimates.outlook import Outlooks
from ebbtide_core.job.job import Job
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.types import WHOLE, Allocation, JobId
from ebbtide_core.planning.preemption import nodes_of
from ebbtide_core.planning.tide.queue import Entry, TideQueue, due_at
from ebbtide_core.planning.tide.room_rates import RoomRates
from ebbtide_core.resources.pools import PoolState

ALIKE: Final = 1.02
"""The factor by which a search may differ from one that found no victims without being made anew on unchanged nodes."""


class Search(NamedTuple):
    """A search for victims of one job."""

    renewal: int
    """The number of the last renewal of the nodes' figures."""
    most: float
    """What the delay of the victims may cost at most."""
    left_s: float
    """The job's time per completion in seconds."""
    longer: float
    """How many times as long a victim of the job's priority has to be expected to take."""
    less_urgent: bool
    """Whether less urgent jobs may step aside, whatever that costs them."""

    def finds_no_more_than(self, other: "Search") -> bool:
        """Return whether this finds nobody where ``other`` found nobody, on nodes whose figures are the same."""
        alike = self.most <= other.most * ALIKE and self.left_s * ALIKE >= other.left_s
        return alike and (self.longer, self.less_urgent) == (other.longer, other.less_urgent)


@mypyc_attr(allow_interpreted_subclasses=True)
class TideIndex:
    """What earlier jobs tell, how often room appears, and which jobs with room were due when they started."""

    def __init__(self, state: PoolState, queue: TideQueue) -> None:
        self.outlooks = queue.outlooks = Outlooks(state)
        self.rates = RoomRates(state, self.outlooks)
        self.was_due: dict[JobId, Entry] = {}
        """The jobs with room that were due when they started."""
        self.first_due: list[Entry] = []
        """The same jobs, in the order in which they became due."""
        self.in_vain: dict[JobId, Search] = {}
        """The last search for victims of each waiting job, if it found none."""
        self.wide_jobs_come = False
        """Whether any job was seen that needs or can use several GPUs."""
        self.evened_out_at = 0.0
        """The Unix time of the last pass in which elastic jobs could give each other GPUs."""
        self._queue = queue
        self._rooms: dict[JobId, tuple[Allocation, int]] = {}
        """The room of each job, and the number of the attempt that runs there; 0 if that is still to come."""

    def update(self, job: Job) -> None:
        """Take in that ``job`` changed."""
        self.in_vain.pop(job.id, None)
        self.wide_jobs_come = self.wide_jobs_come or job.gpus_max > WHOLE
        if changed := self.outlooks.learn(job):
            self._queue.sort_anew(changed)
        known = self._rooms.get(job.id)
        room = None if job.planned is None else (job.planned, job.attempts[-1].number if job.running else 0)
        if room == known:
            return
        for node in {*(known[0].node_ids if known is not None else ()), *nodes_of(job)}:
            self.rates.change(node)
        if room is None:
            del self._rooms[job.id]
            if (entry := self.was_due.pop(job.id, None)) is not None:
                del self.first_due[bisect_left(self.first_due, entry)]
            return
        self._rooms[job.id] = room
        if job.running and job.id not in self.was_due:
            placed = job.attempts[-1].placed
            due = due_at(job, self.outlooks.of(job, placed), self._queue.bound)
            if due <= placed:
                self.was_due[job.id] = due, job.sequence, job
                insort(self.first_due, self.was_due[job.id])
