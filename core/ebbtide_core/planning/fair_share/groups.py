"""The index of jobs by group or user for `FairShare`."""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final, Literal, NamedTuple

from ebbtide_core.admission.queues import demand_of
from ebbtide_core.job.job import Job
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.types import WHOLE, JobId
from ebbtide_core.planning.staying import LatelyResumed

BOUND, RUNS, CLAIMS, WAITS = range(4)
"""States of a job: bound (cannot be preempted), running, waiting for room that is being freed for it, waiting."""
Stand = tuple[int, float, int]
"""The position of a job in its group: by its state above, then by start, then by submission."""


Kind = tuple[Hashable, ...]
"""All that decides the share of a group and which of its jobs comes first, except its age; kinds are treated alike.

The groups without room have kinds, and so have those whose only job has room. If the only job waits and needs certain
nodes, its `bound_demand` is in the kind, so that no node in service could run any of these if that is so for one.
"""
LOOK_AHEAD: Final = 32
"""How many jobs of its group may stand behind a job that is too large, for one of them to pass it."""


@dataclass(slots=True, eq=False)
class ShareGroup:
    """The active jobs of a group that want GPUs.

    ``number`` is the sequence number of its first job, ``demand`` maps weights to parts of GPUs, and ``kind`` is None
    if it has several jobs and one of them has room.
    """

    number: int
    key: str
    jobs: list[tuple[Stand, Job]] = field(default_factory=list)
    demand: dict[float, int] = field(default_factory=dict)
    kind: Kind | None = None

    def with_room(self) -> Iterator[tuple[Stand, Job]]:
        """Return the entries of the jobs with room promised to them."""
        return takewhile(lambda entry: entry[0][0] != WAITS, self.jobs)

    def add(self, weight: float, parts: int) -> None:
        """Add ``parts`` to the demand with ``weight``."""
        demand = self.demand.get(weight, 0) + parts
        if demand:
            self.demand[weight] = demand
        else:
            del self.demand[weight]


@dataclass(slots=True)
class RecentUsage:
    """A user's past GPU use as an average that fades with ``half_life_s``; ``average`` holds at time ``at``."""

    average: float = 0.0
    at: float = 0.0

    def had(self, gpus: float, since: float, until: float, half_life_s: float) -> None:
        """Add an attempt with ``gpus`` that has ended."""
        later = max(self.at, until)
        mine = gpus * (1.0 - faded(until - since, half_life_s)) * faded(later - until, half_life_s)
        self.average = self.average * faded(later - self.at, half_life_s) + mine
        self.at = later


@mypyc_attr(allow_interpreted_subclasses=True)
class Groups:
    """All groups with active jobs, and the past use of all users.

    The index is derived event by event, so a master that folds its journal derives the same one, but for the demand of
    elastic jobs: ``most_of_use`` returns the largest size of use to a job, in parts, by what is known at the last event
    about it, and reports of progress are not in the journal.
    """

    def __init__(
        self,
        per: Literal["group", "user"],
        half_life_s: float | None,
        min_run_s: float,
        most_of_use: Callable[[Job], int],
    ) -> None:
        self.groups: dict[str, ShareGroup] = {}
        self.kinds: dict[Kind, list[tuple[int, ShareGroup]]] = {}
        """The groups that have a kind, the oldest first."""
        self.others: dict[str, ShareGroup] = {}
        """The groups that have none."""
        self.past: dict[str, RecentUsage] = {}
        self.resumed = LatelyResumed(min_run_s)
        self._per = per
        self._half_life_s = half_life_s
        self._most_of_use = most_of_use
        self._known: dict[JobId, _Entry] = {}
        self._live: dict[JobId, int] = {}

    def update(self, job: Job) -> None:
        """Add, update or remove ``job`` according to its state."""
        if self._half_life_s is not None:
            self._remember(job, self._half_life_s)
        self.resumed.update(job)
        stand = stand_of(job)
        entry = None
        if stand is not None:
            entry = _Entry(stand, job.gpus_min, share_of(job), self._most_of_use(job), job.weight, bound_demand(job))
        known = self._known.get(job.id)
        if entry == known:
            return
        if entry is not None:  # added before the old entry is removed, so that the group keeps its number
            self._known[job.id] = entry
            self._add(job, entry)
        if known is not None:
            if entry is None:
                del self._known[job.id]
            self._remove(job, known)

    def demand(self, job: Job) -> int:
        """Return what ``job`` adds to the demand of its group, in parts."""
        known = self._known.get(job.id)
        return 0 if known is None else known.demand

    def key(self, job: Job) -> str:
        """Return the name of the job's group; the prefix keeps group names apart from the ids of single jobs."""
        if self._per == "user":
            return job.user
        return f"group {job.spec.group}" if job.spec.group else job.id

    def _add(self, job: Job, entry: "_Entry") -> None:
        group = self.groups.get(self.key(job))
        if group is None:
            key = self.key(job)
            group = self.groups[key] = ShareGroup(job.sequence, key)
        else:
            self._take_out(group)
        insort(group.jobs, (entry.stand, job))
        group.add(entry.weight, entry.demand)
        self._put_back(group)

    def _remove(self, job: Job, entry: "_Entry") -> None:
        group = self.groups[self.key(job)]
        self._take_out(group)
        del group.jobs[bisect_left(group.jobs, (entry.stand, job))]
        group.add(entry.weight, -entry.demand)
        if group.jobs:
            self._put_back(group)
        else:
            del self.groups[group.key]

    def _take_out(self, group: ShareGroup) -> None:
        """Remove ``group`` from the index while it changes."""
        if group.kind is None:
            del self.others[group.key]
            return
        groups = self.kinds[group.kind]
        del groups[bisect_left(groups, (group.number, group))]
        if not groups:
            del self.kinds[group.kind]

    def _put_back(self, group: ShareGroup) -> None:
        (where, _, _), first = group.jobs[0]
        if where != WAITS and len(group.jobs) > 1:
            group.kind = None
            self.others[group.key] = group
        else:
            sizes = first.gpus_min, share_of(first), first.gpus_max
            behind = tuple([(job.gpus_min, job.preemptible) for _, job in islice(group.jobs, 1, LOOK_AHEAD + 1)])
            alone = bound_demand(first) if len(group.jobs) == 1 else None
            group.kind = (where, *sizes, first.preemptible, behind, alone, *sorted(group.demand.items()))
            insort(self.kinds.setdefault(group.kind, []), (group.number, group))

    def _remember(self, job: Job, half_life_s: float) -> None:
        """Add an attempt that has ended to its user's past use."""
        live = job.live
        if live is not None:
            self._live[job.id] = live.number
        elif (number := self._live.pop(job.id, None)) is not None:
            attempt = job.attempts[number - 1]
            assert attempt.end is not None
            past = self.past.setdefault(job.user, RecentUsage())
            past.had(attempt.allocation.share / WHOLE, attempt.placed, attempt.end.at, half_life_s)


def bound_demand(job: Job) -> Hashable:
    """Return the demand of ``job``, and whether it is preemptible, if it waits in the queue and needs certain nodes.

    Else return None.
    """
    waits = job.planned is None and job.holding is None
    return (demand_of(job), job.preemptible) if waits and job.eligibility.constrained else None


class _Entry(NamedTuple):
    """What the index knows of a job, with sizes in parts: its smallest one, its room, and its ``demand``."""

    stand: Stand
    smallest: int
    room: int
    demand: int
    weight: float
    bound_demand: Hashable


def share_of(job: Job) -> int:
    """Return the room of ``job``, in parts; 0 if it has none."""
    return job.planned.share if job.planned is not None else 0


def stand_of(job: Job) -> Stand | None:
    """Return the position of ``job``; None if it wants no GPUs, or neither has room nor could get some in the queue.

    A job that steps aside keeps its position, unless it is held.
    """
    if not job.gpus_max or job.end is not None or (job.held_by is not None and not job.running):
        return None
    if job.planned is None and job.queued is None and job.holding is None:
        return None
    if job.running:
        return (RUNS if job.preemptible else BOUND, job.attempts[-1].placed, job.sequence)
    return (CLAIMS if job.planned is not None else WAITS, 0.0, job.sequence)


def faded(seconds: float, half_life_s: float) -> float:
    """Return the fraction of an average that is left after ``seconds``."""
    return math.exp2(-max(0.0, seconds) / half_life_s)
