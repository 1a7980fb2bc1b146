"""Priorities with preemption and backfill, as in Determined (seed 003).

The most urgent job first (the lowest number), jobs of one priority in order of submission; who was preempted keeps
that place. If there is no room, less urgent jobs are preempted, the least urgent first. If that makes no room either,
the job blocks those behind it, but for what ``backfill`` lets pass.

Where the seed is silent: of the least urgent jobs the newest goes, and alone if that is enough; otherwise the fewest on
one node, each of which is needed, and nobody if the job could not start even so. An elastic job's surplus is taken back
before anybody is preempted. Jobs without GPUs are started in the same order, but block nobody, and nobody blocks them;
they preempt only their like.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ebbtide_core import limits
from ebbtide_core.job import Job
from ebbtide_core.model import WHOLE
from ebbtide_core.policies.draft import Draft
from ebbtide_core.policies.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.policies.hybrid import Slots
from ebbtide_core.policies.policy import Policy
from ebbtide_core.policies.victims import may_be_preempted, preempt
from ebbtide_core.queues import QueueKey, ShapedQueue, shape_of
from ebbtide_core.snapshot import Plan, Snapshot
from ebbtide_core.state import ClusterState, Ranking

ALL: Final = limits.MAX_GPUS * WHOLE
"""More than any job asks for: whoever waits is offered a turn, to be preempted for or to block others."""


@dataclass(frozen=True, slots=True)
class Priority(Policy):
    """Preemptive priority.

    ``preemption``: whether less urgent jobs are preempted. ``backfill``: who may pass a job that has to wait: nobody
    (``off``); or less urgent jobs that would be preempted for it, any of them if nobody is (``on``). ``min_run_s``: as
    for `FitGpp`. ``resize_after_s``: as for `Fifo`.
    """

    preemption: Literal["on", "off"] = "on"
    backfill: Literal["off", "on"] = "on"
    min_run_s: float = 600.0
    resize_after_s: float = 60.0

    def queue(self) -> ShapedQueue:
        """The most urgent first, then by submission."""
        return ShapedQueue(by_urgency, _shape)

    def ranking(self, state: ClusterState) -> Ranking:
        """Who runs, by priority and start."""
        return Slots()

    def plan(self, snapshot: Snapshot) -> Plan:
        """Offer each job its turn, then grow."""
        draft = Draft(snapshot)
        fit_ranges(draft)
        queue = snapshot.queue
        assert isinstance(queue, ShapedQueue)
        queue.first_fit(_Turns(self, draft).offer, lambda: ALL)
        grow(draft, self.resize_after_s)
        return draft.plan()


def by_urgency(job: Job) -> QueueKey:
    """By priority, then by submission; a job whose size is changed while it waits goes to those of its size."""
    return (job.priority, job.sequence, job.gpus_min, job.gpus_max)


def _shape(job: Job) -> Hashable:
    return (shape_of(job), job.priority, job.preemptible)


class _Turns:
    """One pass: who was offered a turn, and who has to wait."""

    def __init__(self, policy: Priority, draft: Draft) -> None:
        self.policy = policy
        self.draft = draft
        self.running: Slots = draft.snapshot.ranking
        self.blocked: int | None = None
        """The priority of the job that was the last to have to wait."""

    def offer(self, job: Job) -> bool:
        """Start ``job`` if it is its turn; False if it has to wait."""
        if self._may_start(job) and self._start(job):
            return True
        if self.blocked is None or not job.gpus_min:
            self.draft.wait(job)
        if job.gpus_min:
            self.blocked = job.priority
        return False

    def _may_start(self, job: Job) -> bool:
        """Whether nobody whom ``job`` must not pass has to wait."""
        if self.blocked is None or not job.gpus_min:
            return True
        if self.policy.backfill == "off" or job.priority <= self.blocked:
            return False
        return self.policy.preemption == "off" or job.preemptible

    def _start(self, job: Job) -> bool:
        draft = self.draft
        if draft.admit(job) or admit_by_shrinking(draft, job, self.policy.resize_after_s):
            return True
        return self.policy.preemption == "on" and self._preempt_for(job)

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
