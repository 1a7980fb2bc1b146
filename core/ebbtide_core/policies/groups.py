"""Jobs by the group or user who shares GPUs with others (`FairShare`)."""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

from ebbtide_core.job import Job
from ebbtide_core.model import WHOLE, JobId

BOUND, RUNS, CLAIMS, WAITS = range(4)
"""Who cannot be preempted, who runs, who waits for room that is being freed for them, and who waits."""
Stand = tuple[int, float, int]
"""Where a job stands in its group: by which of these it is, then by start, then by submission."""


@dataclass(slots=True, eq=False)
class Group:
    """The active jobs of a group that want GPUs. ``number`` is lower for older groups; ``demand`` is by weight."""

    number: int
    jobs: list[tuple[Stand, Job]] = field(default_factory=list)
    demand: dict[float, int] = field(default_factory=dict)

    def with_room(self) -> Iterator[tuple[Stand, Job]]:
        """Those with room promised to them."""
        return takewhile(lambda entry: entry[0][0] != WAITS, self.jobs)

    def add(self, weight: float, parts: int) -> None:
        """Change the demand with that weight."""
        demand = self.demand.get(weight, 0) + parts
        if demand:
            self.demand[weight] = demand
        else:
            del self.demand[weight]


@dataclass(slots=True)
class Past:
    """The GPUs that a user had lately, as an average that fades with ``half_life_s``; ``at`` is when it was right."""

    average: float = 0.0
    at: float = 0.0

    def had(self, gpus: float, since: float, until: float, half_life_s: float) -> None:
        """Take in an attempt that has ended."""
        later = max(self.at, until)
        mine = gpus * (1.0 - faded(until - since, half_life_s)) * faded(later - until, half_life_s)
        self.average = self.average * faded(later - self.at, half_life_s) + mine
        self.at = later


class Groups:
    """All groups; those of whom no job is active are forgotten, but for what their users had.

    It is made from the jobs alone, event by event, so that a master that folds its journal has the same.
    """

    def __init__(self, per: Literal["group", "user"], half_life_s: float | None) -> None:
        self.groups: dict[str, Group] = {}
        self.without_gpus: list[tuple[int, Job]] = []
        self.past: dict[str, Past] = {}
        self._per = per
        self._half_life_s = half_life_s
        self._created = 0
        self._known: dict[JobId, tuple[Stand, int, float]] = {}
        self._live: dict[JobId, int] = {}

    def update(self, job: Job) -> None:
        """Take ``job`` in, or out."""
        if self._half_life_s is not None:
            self._remember(job, self._half_life_s)
        stand = _stand(job)
        entry = None if stand is None else (stand, job.gpus_max, job.weight)
        known = self._known.get(job.id)
        if entry == known:
            return
        if known is not None:
            del self._known[job.id]
            self._remove(job, *known)
        if entry is not None:
            self._known[job.id] = entry
            self._add(job, *entry)

    def key(self, job: Job) -> str:
        """The name of the job's group: no group of several is named like that of a job alone."""
        if self._per == "user":
            return job.user
        return f"group {job.spec.group}" if job.spec.group else job.id

    def _add(self, job: Job, stand: Stand, demand: int, weight: float) -> None:
        if not demand:
            insort(self.without_gpus, (job.sequence, job))
            return
        group = self.groups.get(self.key(job))
        if group is None:
            group = self.groups[self.key(job)] = Group(self._created)
            self._created += 1
        insort(group.jobs, (stand, job))
        group.add(weight, demand)

    def _remove(self, job: Job, stand: Stand, demand: int, weight: float) -> None:
        if not demand:
            del self.without_gpus[bisect_left(self.without_gpus, (job.sequence, job))]
            return
        group = self.groups[self.key(job)]
        del group.jobs[bisect_left(group.jobs, (stand, job))]
        group.add(weight, -demand)
        if not group.jobs:
            del self.groups[self.key(job)]

    def _remember(self, job: Job, half_life_s: float) -> None:
        """Add an attempt that has ended to what its user had."""
        live = job.live
        if live is not None:
            self._live[job.id] = live.number
        elif (number := self._live.pop(job.id, None)) is not None:
            attempt = job.attempts[number - 1]
            assert attempt.exited is not None
            past = self.past.setdefault(job.user, Past())
            past.had(attempt.allocation.share / WHOLE, attempt.placed, attempt.exited, half_life_s)


def _stand(job: Job) -> Stand | None:
    """Where ``job`` stands; None if it is not active, or waits for no GPUs at all and is not in the queue."""
    if not job.gpus_max:
        return None if job.queued is None else (3, 0.0, job.sequence)
    if job.ending is not None or (job.held_by is not None and not job.running):
        return None
    if job.running:
        return (RUNS if job.preemptible else BOUND, job.attempts[-1].placed, job.sequence)
    return (CLAIMS if job.planned is not None else WAITS, 0.0, job.sequence)


def faded(seconds: float, half_life_s: float) -> float:
    """What is left of an average after so many seconds."""
    return math.exp2(-max(0.0, seconds) / half_life_s)
