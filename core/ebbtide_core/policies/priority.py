"""Priorities with preemption and backfill, as in Determined (seed 003).

The most urgent job first (the lowest number), jobs of one priority in order of submission; who was preempted keeps
that place. If there is no room, less urgent jobs are preempted, the least urgent first. If that makes no room either,
the job blocks those behind it, but for what ``backfill`` lets pass. With ``easy``, only the first job that has to wait
is protected from those that would not be preempted for it.

Where the seed is silent: of the least urgent jobs the newest goes, and alone if that is enough; otherwise the fewest on
one node, each of which is needed, and nobody if the job could not start even so. An elastic job's surplus is taken back
before anybody is preempted. Jobs without GPUs are started in the same order, but block nobody, and nobody blocks them;
they preempt only their like.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Literal

from ebbtide_core.job import Job
from ebbtide_core.leaving import Leaving
from ebbtide_core.policies.backfill import ALL, Backfill, shape_in_time, stands_behind
from ebbtide_core.policies.defragment import defragment
from ebbtide_core.policies.draft import Draft
from ebbtide_core.policies.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.policies.hybrid import Slots
from ebbtide_core.policies.policy import Policy
from ebbtide_core.policies.victims import may_be_preempted, preempt
from ebbtide_core.pools import PoolState, Ranking
from ebbtide_core.queues import QueueKey, ShapedQueue, shape_of
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Priority(Policy):
    """Preemptive priority.

    ``preemption``: whether less urgent jobs are preempted. ``backfill``: who may pass a job that has to wait: nobody
    (``off``); less urgent jobs that would be preempted for it, any of them if nobody is (``on``); or those that would
    be preempted for it, and any other that does not delay it (``easy``, see `Backfill`). ``min_run_s``: as for
    `FitGpp`. ``resize_after_s``: as for `Fifo`.
    """

    preemption: Literal["on", "off"] = "on"
    backfill: Literal["off", "on", "easy"] = "on"
    min_run_s: float = 600.0
    resize_after_s: float = 60.0

    def queue(self) -> ShapedQueue:
        """The most urgent first, then by submission."""
        return ShapedQueue(by_urgency, _shape_in_time if self.backfill == "easy" else _shape)

    def ranking(self, state: PoolState) -> Ranking:
        """Who runs, by priority and start; for EASY backfill, also by when they leave."""
        return _Running(Slots(), Leaving(state) if self.backfill == "easy" else None)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Offer each job its turn, then grow."""
        draft = Draft(snapshot)
        fit_ranges(draft)
        queue = snapshot.queue
        assert isinstance(queue, ShapedQueue)
        turns = _Turns(self, draft)
        queue.first_fit(turns.offer, lambda: ALL)
        if turns.backfill is None:
            grow(draft, self.resize_after_s)
        else:
            turns.backfill.finish(self.resize_after_s)
        return draft.plan()


@dataclass(frozen=True, slots=True)
class _Running:
    slots: Slots
    leaving: Leaving | None

    def update(self, job: Job) -> None:
        self.slots.update(job)
        if self.leaving is not None:
            self.leaving.update(job)


def by_urgency(job: Job) -> QueueKey:
    """By priority, then by submission; a job whose size is changed while it waits goes to those of its size."""
    return (job.priority, job.sequence, job.gpus_min, job.gpus_max)


def _shape(job: Job) -> Hashable:
    return (shape_of(job), job.priority, job.preemptible)


def _shape_in_time(job: Job) -> Hashable:
    return (shape_in_time(job), job.priority, job.preemptible)


class _Turns:
    """One pass: who was offered a turn, and who has to wait."""

    def __init__(self, policy: Priority, draft: Draft) -> None:
        self.policy = policy
        self.draft = draft
        running: _Running = draft.snapshot.ranking
        self.running = running.slots
        self.leaving = running.leaving
        self.blocked: int | None = None
        """The priority of the job that was the last to have to wait."""
        self.backfill: Backfill | None = None
        """Behind the first that has to wait; only for EASY."""

    def offer(self, job: Job) -> bool:
        """Start ``job`` if it is its turn; False if it has to wait."""
        if self._may_start(job):
            if self._start(job):
                return True
        elif self.backfill is not None and self.backfill.admit(job):
            return True
        if self.blocked is None or not job.gpus_min:
            self.draft.wait(job)
        if job.gpus_min and job.own_room is None:
            self.blocked = job.priority
            if self.leaving is not None and self.backfill is None:
                behind = stands_behind(self.draft.snapshot.queue)
                self.backfill = Backfill(self.draft, self.leaving, job, behind, self._would_be_preempted_for(job))
        return False

    def _may_start(self, job: Job) -> bool:
        """Whether nobody whom ``job`` must not pass has to wait."""
        if self.blocked is None or not job.gpus_min:
            return True
        if self.policy.backfill == "off" or job.priority <= self.blocked:
            return False
        if self.policy.preemption == "off":
            return self.policy.backfill == "on"
        return job.preemptible

    def _would_be_preempted_for(self, job: Job) -> Iterator[Job]:
        """Who will go for ``job`` once that makes room; those that are spared for now count, too."""
        if self.policy.preemption == "off":
            return
        for priority, placed in self.running.regular.items():
            if priority > job.priority:
                yield from (other for _, _, other in placed if other.preemptible)
        for id in self.draft.placements:
            other = self.draft.snapshot.job(id)
            if other.priority > job.priority and other.preemptible:
                yield other

    def _start(self, job: Job) -> bool:
        draft = self.draft
        if draft.admit(job) or admit_by_shrinking(draft, job, self.policy.resize_after_s):
            return True
        if self.policy.preemption == "on" and self._preempt_for(job):
            return True
        return self.blocked is None and defragment(draft, job, self.policy.resize_after_s)

    def _preempt_for(self, job: Job) -> bool:
        return preempt(self.draft, job, self._levels(job), f"preempted by job {job.id} of priority {job.priority}")

    def _levels(self, job: Job) -> Iterator[list[Job]]:
        """The less urgent jobs that may be preempted: the least urgent priority first, and of each the newest job."""
        for priority in sorted(self.running.regular, reverse=True):
            if priority <= job.priority:
                return
            newest_first = (other for _, _, other in reversed(self.running.regular[priority]))
            yield [other for other in newest_first if self._may_be_preempted(other, job)]

    def _may_be_preempted(self, other: Job, job: Job) -> bool:
        if other.gpus_min and not job.gpus_min:
            return False
        return may_be_preempted(self.draft, other, self.policy.min_run_s)
