"""Indexes the elastic jobs of a pool by what can be done about their size, so that no pass looks at all of them."""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from operator import itemgetter

from ebbtide_core.estimates.restart_costs import RUNS_PER_RESTART
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, JobId, NodeId

Entry = tuple[float, int, JobId]
"""The Unix time from which a job may be resized, its place in the order of submission, and its id."""


class ElasticJobs:
    """The elastic jobs that are promised room, by id.

    ``surplus`` are the ones of these with more than their smallest size, ``growable`` those with less than their
    largest, and ``spread`` the growable ones that may grow on nodes where they have nothing yet; ``leaving`` are those
    with a surplus that may leave a node. ``spare`` is how many GPUs jobs with a surplus might give back on a node,
    rounded up.
    """

    def __init__(self) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.surplus = ResizableJobs()
        self.growable = ResizableJobs()
        self.spread: dict[JobId, Job] = {}
        self.leaving: dict[JobId, Job] = {}
        self.spare: dict[NodeId, int] = {}
        self._with_spare: dict[int, dict[NodeId, None]] = {}
        self.greatest_surplus_first: list[tuple[int, int, JobId]] = []
        """The jobs with a surplus, by that in parts, negated, and by submission."""
        self._ranks: dict[JobId, tuple[int, int, JobId]] = {}
        self._parts: dict[NodeId, int] = {}
        self._given: dict[JobId, dict[NodeId, int]] = {}
        """What each job might give back, in parts of GPUs."""

    def __len__(self) -> int:
        return len(self.jobs)

    def __contains__(self, id: JobId) -> bool:
        return id in self.jobs

    def update(self, job: Job, has_room: bool) -> None:
        """Note how ``job`` is now; unless it is elastic and ``has_room``, it is left out."""
        id, room = job.id, job.planned
        if room is None or not has_room or not job.elastic:
            if id in self.jobs:
                self.forget(job)
            return
        share = room.share
        self.jobs[id] = job
        self.surplus.update(job, share > job.gpus_min)
        self.growable.update(job, share < job.gpus_max)
        _keep(self.spread, job, share < job.gpus_max and job.spec.spread)
        _keep(self.leaving, job, share > job.gpus_min and job.spec.spread)
        self._sort(id, (job.gpus_min - share, job.sequence, id) if share > job.gpus_min else None)
        self._give(id, _given_back(job) if share > job.gpus_min else {})

    def forget(self, job: Job) -> None:
        """Leave ``job`` out."""
        self.jobs.pop(job.id, None)
        self.spread.pop(job.id, None)
        self.leaving.pop(job.id, None)
        self._sort(job.id, None)
        self.surplus.update(job, False)
        self.growable.update(job, False)
        self._give(job.id, {})

    def nodes_with(self, count: int, idle: Mapping[int, Mapping[NodeId, None]]) -> set[NodeId]:
        """Return the nodes that may have ``count`` GPUs once all jobs there have given their surplus back.

        ``idle`` has the nodes by how many GPUs are idle there. Shares of GPUs that are in use do not count.
        """
        found = {node for spare, nodes in self._with_spare.items() if spare >= count for node in nodes}
        for free, nodes in idle.items():
            if free:
                found.update([node for node in nodes if free + self.spare.get(node, 0) >= count])
        return found

    def how_many_with(self, count: int, idle: Mapping[int, Mapping[NodeId, None]]) -> int:
        """Return how many nodes `nodes_with` would return, without a look at those where no GPU is idle."""
        spare = self.spare
        found = sum(len(nodes) for each, nodes in self._with_spare.items() if each >= count)
        for free, nodes in idle.items():
            if free:
                found += sum(1 for node in nodes if free + spare.get(node, 0) >= count > spare.get(node, 0))
        return found

    def _sort(self, id: JobId, rank: tuple[int, int, JobId] | None) -> None:
        before = self._ranks.pop(id, None)
        if rank is not None:
            self._ranks[id] = rank
        if rank == before:
            return
        if before is not None:
            del self.greatest_surplus_first[bisect_left(self.greatest_surplus_first, before)]
        if rank is not None:
            insort(self.greatest_surplus_first, rank)

    def _give(self, id: JobId, parts: dict[NodeId, int]) -> None:
        before = self._given.get(id, {})
        if parts == before:
            return
        for node in before.keys() | parts.keys():
            total = self._parts.get(node, 0) + parts.get(node, 0) - before.get(node, 0)
            spare, had = -(-total // WHOLE), self.spare.get(node, 0)
            _put(self._parts, node, total)
            _put(self.spare, node, spare)
            if spare != had:
                if had:
                    del self._with_spare[had][node]
                if spare:
                    self._with_spare.setdefault(spare, {})[node] = None
        if parts:
            self._given[id] = parts
        else:
            del self._given[id]


class ResizableJobs:
    """Some jobs, by id, and when their attempts may be resized."""

    def __init__(self) -> None:
        self.by_id: dict[JobId, Job] = {}
        self._orders: dict[float, _Order] = {}
        """By the seconds for which an attempt runs before it is resized."""

    def __len__(self) -> int:
        return len(self.by_id)

    def update(self, job: Job, belongs: bool) -> None:
        """Note how ``job`` is now, or that it does not belong here."""
        if belongs:
            self.by_id[job.id] = job
        elif self.by_id.pop(job.id, None) is None:
            return
        for after_s, order in self._orders.items():
            order.update(job, belongs, after_s)

    def later(self, after_s: float, now: float) -> Iterator[tuple[float, Job]]:
        """Iterate over those that run and may be resized only after Unix time ``now``, each with that time.

        The soonest comes first; ``after_s`` is as for `resizable_at`.
        """
        for due, _, id in self._order(after_s).between(now, math.inf):
            yield due, self.by_id[id]

    def since(self, after_s: float, before: float, now: float) -> Iterator[Job]:
        """Iterate over those that run, and may be resized by Unix time ``now``, but could not be at ``before``."""
        for _, _, id in self._order(after_s).between(before, now):
            yield self.by_id[id]

    def _order(self, after_s: float) -> "_Order":
        order = self._orders.get(after_s)
        if order is None:
            order = self._orders[after_s] = _Order()
            for job in self.by_id.values():
                order.update(job, True, after_s)
        return order


class _Order:
    """Jobs in the order in which their attempts may be resized; those of which that is not known are left out."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._of: dict[JobId, Entry] = {}

    def update(self, job: Job, belongs: bool, after_s: float) -> None:
        """Enter ``job`` anew, or leave it out."""
        due = resizable_at(job, after_s) if belongs and job.running else None
        entry = None if due is None else (due, job.sequence, job.id)
        before = self._of.pop(job.id, None)
        if entry is not None:
            self._of[job.id] = entry
        if entry == before:
            return
        if before is not None:
            del self._entries[bisect_left(self._entries, before)]
        if entry is not None:
            insort(self._entries, entry)

    def between(self, before: float, last: float) -> Iterator[Entry]:
        """Iterate over the entries that are later than Unix time ``before``, and no later than ``last``."""
        for number in range(bisect_right(self._entries, before, key=itemgetter(0)), len(self._entries)):
            entry = self._entries[number]
            if entry[0] > last:
                return
            yield entry


def resizable_at(job: Job, after_s: float) -> float | None:
    """Return the Unix time from which the job's running attempt may be resized; None if no attempt runs.

    An attempt runs for ``after_s`` seconds before that, or for ten times its job's restart cost if that is longer.
    """
    live = job.live
    if live is None or live.started is None:
        return None
    return live.started + max(after_s, RUNS_PER_RESTART * (job.suspending.restart_cost_s or 0.0))


def _given_back(job: Job) -> dict[NodeId, int]:
    """Return how many parts of GPUs ``job`` might give back on each node; one that may be spread may leave a node."""
    room = job.planned
    assert room is not None
    if job.spec.spread:
        return {piece.node: piece.share for piece in room.nodes}
    return {room.node_ids[0]: room.share - job.gpus_min}


def _keep(jobs: dict[JobId, Job], job: Job, belongs: bool) -> None:
    if belongs:
        jobs[job.id] = job
    else:
        jobs.pop(job.id, None)


def _put(counts: dict[NodeId, int], node: NodeId, count: int) -> None:
    if count:
        counts[node] = count
    else:
        counts.pop(node, None)
