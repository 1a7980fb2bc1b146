"""Priorities with preemption and backfill, as in Determined (seed 003).

The most urgent job, which has the lowest number, comes first; jobs of one priority come in order of submission, and a
preempted job keeps that place. If there is no room, less urgent jobs are preempted, the least urgent first. If that
makes no room either, the job blocks the jobs behind it, except those that ``backfill`` lets pass. With ``easy``, only
the first job that has to wait is protected from jobs that would not be preempted for it.

Where the seed is silent: of the least urgent jobs the newest is preempted, alone if that is enough; otherwise the
fewest on one node of which each is needed, and none if the job could not start even so. An elastic job's surplus is
taken back before any job is preempted. Jobs without GPUs start in the same order, but neither block other jobs nor are
blocked by them, and they preempt only jobs without GPUs.

Options add parts of other policies: FitGpp's choice of the victim (``victims``, Eq. 1 of seed 000), its classes
(``classes``), and HYBRID's sticky slots (``sticky``, seed 004).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from ebbtide_core.admission.queues import DemandQueue, QueueKey, demand_of
from ebbtide_core.job.job import Job
from ebbtide_core.planning.backfill import ALL, Backfill, demand_in_time, stands_behind
from ebbtide_core.planning.classes import best_effort
from ebbtide_core.planning.defragment import defragment
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.planning.policy import JobImportance, Policy
from ebbtide_core.planning.preemption import may_be_preempted, preempt
from ebbtide_core.planning.slots import Slots, SlotsLeft
from ebbtide_core.planning.staying import (
    NOBODY_STEPS_ASIDE,
    NOT_FOR_CPUS,
    Stay,
    stays_by_itself,
    stays_by_urgency,
)
from ebbtide_core.policies.fitgpp import PAPER_S, Scores
from ebbtide_core.resources.eligibility import holds_up
from ebbtide_core.resources.expected_releases import ExpectedReleases
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Priority(Policy):
    """Preemptive priority.

    ``preemption``: whether less urgent jobs are preempted. ``backfill``: which jobs may pass a job that has to wait:
    none (``off``); less urgent jobs that would be preempted for it, or all less urgent ones if ``preemption`` is off
    (``on``); or jobs that would be preempted for it and any other job that does not delay it (``easy``, see
    `Backfill`). ``victims``: of the least urgent jobs, the ``newest`` or the ``cheapest`` by FitGpp's score goes first.
    ``classes``: within a priority, trial-and-error jobs come before best-effort ones, and preempt them. ``sticky``: as
    for `Hybrid`; 0 for none. ``min_run_s``: as for `FitGpp`. ``resize_after_s``: as for `Fifo`.
    """

    preemption: Literal["on", "off"] = "on"
    backfill: Literal["off", "on", "easy"] = "on"
    victims: Literal["newest", "cheapest"] = "newest"
    classes: Literal["on", "off"] = "off"
    sticky: float = 0.0
    min_run_s: float = 600.0
    resize_after_s: float = 60.0

    goes_by: ClassVar[frozenset[JobImportance]] = frozenset({JobImportance.PRIORITY})

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sticky) and self.sticky >= 0):
            raise ValueError(f"sticky is at least 0, not {self.sticky}")
        if self.sticky and self.backfill == "easy":
            raise ValueError("sticky and backfill=easy do not go together: easy knows when GPUs are free, not slots")

    def preempts(self) -> bool:
        """Return whether ``preemption`` is on."""
        return self.preemption == "on"

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """Apply the rule by priority; with ``classes``, also that by class."""
        if not self.preempts():
            return NOBODY_STEPS_ASIDE
        if job.gpus_min and not waiting.gpus_min:
            return NOT_FOR_CPUS
        if job.priority == waiting.priority and self.urgency(job) > self.urgency(waiting):
            return stays_by_itself(job, self.min_run_s, now)
        return stays_by_urgency(job, waiting, self.min_run_s, now)

    def queue(self) -> DemandQueue:
        """Order waiting jobs by urgency, then by submission."""
        urgency, fits = self.urgency, demand_in_time if self.backfill == "easy" else demand_of

        def by_urgency(job: Job) -> QueueKey:  # the sizes are in the key because they may change while a job waits
            return (urgency(job), job.sequence, job.gpus_min, job.gpus_max)

        return DemandQueue(by_urgency, lambda job: (fits(job), urgency(job), job.preemptible))

    def ranking(self, state: PoolState) -> Ranking:
        """Index the jobs with room by urgency and start; for EASY backfill, also by expected release."""
        scores = Scores(PAPER_S, state.books, _anybody) if self.victims == "cheapest" else None
        return _Running(Slots(self.urgency), ExpectedReleases(state) if self.backfill == "easy" else None, scores)

    def urgency(self, job: Job) -> int:
        """Return the urgency of ``job``; a lower number is more urgent. ``classes`` split each priority in two."""
        return 2 * job.priority + best_effort(job) if self.classes == "on" else job.priority

    def plan(self, snapshot: Snapshot) -> Plan:
        """Offer each job its turn, then grow."""
        draft = Draft(snapshot)
        fit_ranges(draft)
        queue = snapshot.queue
        assert isinstance(queue, DemandQueue)
        turns = _Pass(self, draft)
        turns.hand_out_sticky_slots()
        queue.first_fit(turns.offer, lambda: ALL)
        if turns.backfill is None:
            grow(draft, self.resize_after_s)
        else:
            turns.backfill.finish(self.resize_after_s)
        return draft.plan()


@dataclass(frozen=True, slots=True)
class _Running:
    slots: Slots
    leaving: ExpectedReleases | None
    scores: Scores | None

    def update(self, job: Job) -> None:
        self.slots.update(job)
        if self.leaving is not None:
            self.leaving.update(job)
        if self.scores is not None:
            self.scores.update(job)


def _anybody(job: Job) -> bool:
    return True


class _Pass:
    """One pass of the policy: it offers each waiting job its turn, and keeps which of them have to wait."""

    def __init__(self, policy: Priority, draft: Draft) -> None:
        self.policy = policy
        self.draft = draft
        running: _Running = draft.snapshot.ranking
        self.running = running.slots
        self.leaving = running.leaving
        self.urgency = policy.urgency
        self.left = SlotsLeft(draft.snapshot, self.running, policy.sticky)
        self.scores = running.scores
        self.cheapest: dict[int, list[Job]] | None = None
        """The jobs with room by urgency, the cheapest to preempt first; computed when first needed."""
        self.blocked: int | None = None
        """The urgency of the last job that had to wait; None if none had to."""
        self.backfill: Backfill | None = None
        """The backfill behind the first job that has to wait; only for EASY."""

    def hand_out_sticky_slots(self) -> None:
        """Start the jobs that arrived first on free sticky slots."""
        if self.policy.sticky:
            self.draft.may_have_room = self.left.suffice
            self.left.hand_out(self._start_sticky)

    def _start_sticky(self, job: Job) -> bool:
        room = self.draft.trial.find(job, job.gpus_min, free_now=True)
        if room is not None:
            self.draft.place(job, room, "starting on a sticky slot", sticky=True)
        return room is not None

    def offer(self, job: Job) -> bool:
        """Start ``job`` if it may start now; return False if it has to wait."""
        if self.policy.sticky and job.id in self.draft.placements:
            return True
        if self._may_start(job):
            if self._start(job):
                return True
        elif self.backfill is not None and self.backfill.admit(job):
            return True
        if self.blocked is None or not job.gpus_min:
            self.draft.wait(job)
        if job.gpus_min and holds_up(job, self.draft.snapshot.books):
            self.blocked = self.urgency(job)
            if self.leaving is not None and self.backfill is None:
                behind = stands_behind(self.draft.snapshot.queue)
                self.backfill = Backfill(self.draft, self.leaving, job, behind, self._would_be_preempted_for(job))
        return False

    def _may_start(self, job: Job) -> bool:
        """Return whether ``job`` may start before all jobs that have to wait so far."""
        if self.blocked is None or not job.gpus_min:
            return True
        if self.policy.backfill == "off" or self.urgency(job) <= self.blocked:
            return False
        if self.policy.preemption == "off":
            return self.policy.backfill == "on"
        return job.preemptible

    def _would_be_preempted_for(self, job: Job) -> Iterator[Job]:
        """Yield the jobs that may be preempted for ``job`` later, including those that are spared for now."""
        if self.policy.preemption == "off":
            return
        urgency = self.urgency(job)
        for less, placed in self.running.regular.items():
            if less > urgency:
                yield from (other for _, _, other in placed if other.preemptible)
        for id in self.draft.placements:
            other = self.draft.snapshot.job(id)
            if self.urgency(other) > urgency and other.preemptible:
                yield other

    def _start(self, job: Job) -> bool:
        draft, left, resize_after_s = self.draft, self.left, self.policy.resize_after_s
        if left.suffice(job) and (draft.admit(job) or admit_by_shrinking(draft, job, resize_after_s)):
            left.use(job.gpus_min)
            return True
        if self.policy.preemption == "on" and self._preempt_for(job):
            return True
        if self.blocked is not None or not left.suffice(job) or not defragment(draft, job, resize_after_s):
            return False
        left.use(job.gpus_min)
        return True

    def _preempt_for(self, job: Job) -> bool:
        reason = f"preempted by job {job.id} of priority {job.priority}"
        victims = preempt(self.draft, job, self._levels(job), reason)
        if victims:
            self.left.use(job.gpus_min - self.left.of(victims))
        return bool(victims)

    def _levels(self, job: Job) -> Iterator[list[Job]]:
        """Yield the less urgent jobs that may be preempted, the least urgent first; ``victims`` orders each level."""
        limit = self.urgency(job)
        for urgency in sorted(self.running.regular, reverse=True):
            if urgency <= limit:
                return
            yield [other for other in self._line(urgency) if self._may_be_preempted(other, job)]

    def _line(self, urgency: int) -> Iterable[Job]:
        """Return the jobs of one urgency in the order in which they are preempted."""
        if self.scores is None:
            return (other for _, _, other in reversed(self.running.regular[urgency]))
        if self.cheapest is None:
            self.cheapest = {}
            for _, other in self.scores:
                if not (other.running and other.attempts[-1].sticky):
                    self.cheapest.setdefault(self.urgency(other), []).append(other)
        return self.cheapest[urgency]

    def _may_be_preempted(self, other: Job, job: Job) -> bool:
        if other.gpus_min and not job.gpus_min:
            return False
        return may_be_preempted(self.draft, other, self.policy.min_run_s)
