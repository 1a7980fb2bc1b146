"""Predicts when running jobs free their GPUs, and so when there is room for a waiting job.

An attempt leaves when its work is done, or when its requested time is up: the job's time limit, or the end of its
reservation. In the latter case its grace period follows. Where neither is known, an estimate is used.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple

from ebbtide_core.estimates.work import Curve, expected_end, work_done
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.model.types import WHOLE, Allocation, JobId, NodeId
from ebbtide_core.resources.placing import Trial
from ebbtide_core.resources.pools import PoolState


class ExpectedRelease(NamedTuple):
    """The expectation that ``job`` frees its GPUs at Unix time ``time``, or at the latest then if it is ``certain``.

    With ``asks_again`` a reservation ends then, and the job waits in the queue for its next reservation.
    """

    time: float
    sequence: int
    asks_again: bool
    certain: bool
    job: Job


def held_s(job: Job, at: float, share: int, speedup: Curve, reserved_s: float | None = None) -> float | None:
    """Return for how many seconds at most an attempt that starts at Unix time ``at`` holds ``share`` parts of GPUs.

    The bound is the rest of the job's time limit, or of ``reserved_s`` of running time, plus its grace period; without
    either, the rest of the work that its submitter declared; None without any of them.
    """
    limits = [limit for limit in (job.spec.time_limit_s, reserved_s) if limit is not None]
    if limits:
        return max(0.0, min(limits) - job.running_s(at)) + job.spec.grace_s
    if job.spec.work_s is not None:
        return max(0.0, job.spec.work_s - work_done(job, at, speedup)) / speedup(share)
    return None


Gone = tuple[ExpectedRelease, Allocation]
"""A release, and the allocation that it frees."""


def first_room(trial: Trial, job: Job, leaving: Iterable[Gone]) -> Gone | None:
    """Return the last release that ``job`` has to wait for, and the room that it gets then; None if it never fits.

    ``leaving`` is in order of time. The allocations that are released until then are given back in ``trial``, at least
    on the nodes of the room. ``job`` must not fit before the first release.
    """
    return _room_of_gang(trial, job, leaving) if trial.is_gang(job) else _room_on_node(trial, job, leaving)


# After most releases there is still no room, and counting GPUs costs less than searching for room.


def _room_of_gang(trial: Trial, job: Job, leaving: Iterable[Gone]) -> Gone | None:
    at_most, gone = trial.idle, list[Allocation]()
    for leave, allocation in leaving:
        gone.append(allocation)
        at_most += -(-allocation.share // WHOLE)
        if at_most * WHOLE < job.gpus_min:
            continue
        while gone:
            trial.give(gone.pop())
        room, at_most = trial.find(job, job.gpus_min), trial.idle
        if room is not None:
            return leave, room
    return None


def _room_on_node(trial: Trial, job: Job, leaving: Iterable[Gone]) -> Gone | None:
    needed, given = job.gpus_min // WHOLE, set[JobId]()
    at_most: dict[NodeId, int] = {}
    gone: dict[NodeId, list[Gone]] = {}
    for leave, allocation in leaving:
        for piece in allocation.nodes:
            node = trial.nodes.get(piece.node)
            if node is None:
                continue
            id = node.id
            if id not in gone:
                at_most[id], gone[id] = node.idle(trial.use(id)), []
            at_most[id] += len(piece.gpus)
            gone[id].append((leave, allocation))
            if at_most[id] < needed:
                continue
            for other, freed in gone.pop(id):
                if other.job.id not in given:
                    given.add(other.job.id)
                    trial.give(freed)
            room = trial.find(job, job.gpus_min, (id,))
            if room is not None:
                return leave, room
    return None


class LastReason(NamedTuple):
    """The wait reason that the ``head`` of the queue got last: that it waits until job ``last`` leaves."""

    head: JobId
    last: JobId
    text: str


class ExpectedReleases:
    """The expected releases in order of time; they are kept up to date, so that a pass need not sort them.

    ``starting`` are the jobs that were placed and do not run yet. A running job whose release nothing predicts is in
    neither. ``last_reason`` is the last reason of the queue's head that named a job.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._known: dict[JobId, tuple[ExpectedRelease, ...]] = {}
        self.order: list[ExpectedRelease] = []
        self.starting: dict[JobId, Job] = {}
        self.last_reason: LastReason | None = None

    def __contains__(self, job: JobId) -> bool:
        """Return whether that job runs and its release is predicted."""
        return job in self._known

    def update(self, job: Job) -> None:
        """Add, replace or remove the releases of ``job`` after it changed."""
        live = job.live if job.running else None
        if live is not None and live.started is None:
            self.starting[job.id] = job
        else:
            self.starting.pop(job.id, None)
        leaves = () if live is None or live.started is None else self._leaves(job, live, live.started)
        known = self._known.get(job.id, ())
        if leaves == known:
            return
        for leave in known:
            del self.order[bisect_left(self.order, leave)]
        for leave in leaves:
            insort(self.order, leave)
        if leaves:
            self._known[job.id] = leaves
        else:
            del self._known[job.id]

    def _leaves(self, job: Job, attempt: Attempt, started: float) -> tuple[ExpectedRelease, ...]:
        held = held_s(job, started, attempt.allocation.share, attempt.speedup or self._state.speedup)
        end = expected_end(job, self._state.history, self._state.speedup) if held is None else started + held
        found = () if end is None else (ExpectedRelease(end, job.sequence, False, held is not None, job),)
        if attempt.reserved_s is None:
            return found
        end = started + max(0.0, attempt.reserved_s - job.times.ran_s) + job.spec.grace_s
        return (*found, ExpectedRelease(end, job.sequence, True, True, job))
