"""Indexes the elastic jobs of a pool by what can be done about their size, so that no pass looks at all of them."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

from ebbtide_core.estimates.restart_costs import RUNS_PER_RESTART
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobId


class ElasticJobs:
    """The elastic jobs that are promised room, by id.

    ``surplus`` are the ones of these with more than their smallest size, ``growable`` those with less than their
    largest, and ``spread`` the growable ones that may grow on nodes where they have nothing yet.
    """

    def __init__(self) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.surplus: dict[JobId, Job] = {}
        self.growable: dict[JobId, Job] = {}
        self.spread: dict[JobId, Job] = {}
        self._after_s = 0.0
        """The seconds for which the times in ``_order`` let an attempt run before it is resized."""
        self._order: list[tuple[float, int, JobId]] = []
        """When each growable attempt that runs may be resized, with its job's place in the order of submission."""
        self._entries: dict[JobId, tuple[float, int, JobId]] = {}

    def __len__(self) -> int:
        return len(self.jobs)

    def __contains__(self, id: JobId) -> bool:
        return id in self.jobs

    def update(self, job: Job, has_room: bool) -> None:
        """Note how ``job`` is now; unless it is elastic and ``has_room``, it is left out."""
        id, room = job.id, job.planned
        if room is None or not has_room or not job.elastic:
            if id in self.jobs:
                self.forget(id)
            return
        share = room.share
        _keep(self.jobs, job, True)
        _keep(self.surplus, job, share > job.gpus_min)
        _keep(self.growable, job, share < job.gpus_max)
        _keep(self.spread, job, share < job.gpus_max and job.spec.spread)
        self._enter(id, self._entry(job) if share < job.gpus_max else None)

    def forget(self, id: JobId) -> None:
        """Leave out the job with that id."""
        for index in (self.jobs, self.surplus, self.growable, self.spread):
            index.pop(id, None)
        self._enter(id, None)

    def resizable_later(self, after_s: float, now: float) -> Iterator[tuple[float, Job]]:
        """Iterate over the running growable jobs that may be resized only after Unix time ``now``, the soonest first.

        Each comes with that time; ``after_s`` is as for `resizable_at`.
        """
        if after_s != self._after_s:
            self._after_s = after_s
            for job in self.growable.values():
                self._enter(job.id, self._entry(job))
        first = bisect_right(self._order, now, key=itemgetter(0))
        return ((due, self.growable[id]) for due, _, id in islice(self._order, first, None))

    def _entry(self, job: Job) -> tuple[float, int, JobId] | None:
        due = resizable_at(job, self._after_s)
        return None if due is None else (due, job.sequence, job.id)

    def _enter(self, id: JobId, entry: tuple[float, int, JobId] | None) -> None:
        before = self._entries.get(id)
        if entry == before:
            return
        if before is not None:
            del self._order[bisect_left(self._order, before)]
            del self._entries[id]
        if entry is not None:
            insort(self._order, entry)
            self._entries[id] = entry


def resizable_at(job: Job, after_s: float) -> float | None:
    """Return the Unix time from which the job's running attempt may be resized; None if no attempt runs.

    An attempt runs for ``after_s`` seconds before that, or for ten times its job's restart cost if that is longer.
    """
    live = job.live
    if live is None or live.started is None:
        return None
    return live.started + max(after_s, RUNS_PER_RESTART * (job.suspending.restart_cost_s or 0.0))


def _keep(index: dict[JobId, Job], job: Job, wanted: bool) -> None:
    if wanted:
        index[job.id] = job
    else:
        index.pop(job.id, None)
