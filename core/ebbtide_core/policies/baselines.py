"""The paper's baselines for FitGpp: victims by longest remaining time (LRTP, from Big-C), or at random (seed 000 §3).

Both take victims from the whole cluster, one after the other, until the trial-and-error job fits somewhere, as the
paper's appendix says. They are here to be compared with: they preempt many jobs whose room helps nobody.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from ebbtide_core.admission.queues import Queue
from ebbtide_core.estimates.work import expected_end
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobId
from ebbtide_core.policies.chance import mix
from ebbtide_core.policies.classes import admit_in_order, best_effort, by_class, may_be_preempted, stays_in_class
from ebbtide_core.policies.draft import Draft
from ebbtide_core.policies.policy import Policy
from ebbtide_core.policies.preemption import claim
from ebbtide_core.policies.staying import Stay
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Lrtp(Policy):
    """Preempts the best-effort job with the longest remaining time first.

    Remaining time is what its submitter declared, its progress, earlier runs or its time limit tell, in this order;
    jobs of which nothing is known come last. ``min_run_s``: as for `FitGpp`. ``resize_after_s``: as for `Fifo`.
    """

    min_run_s: float = 600.0
    resize_after_s: float = 60.0

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """As for its class."""
        return stays_in_class(job, waiting, self.min_run_s, now)

    def queue(self) -> Queue:
        """Trial-and-error jobs first."""
        return Queue(by_class)

    def ranking(self, state: PoolState) -> Ranking:
        """Running best-effort jobs by when they would end."""
        return Ends(state)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Admit in order; preempt for trial-and-error jobs."""
        draft = Draft(snapshot)
        ends: Ends = snapshot.ranking

        def preempt_for(draft: Draft, job: Job) -> bool:
            return _preempt_until_it_fits(draft, job, iter(ends), self.min_run_s)

        admit_in_order(draft, preempt_for, self.resize_after_s)
        return draft.plan()


@dataclass(frozen=True, slots=True)
class Rand(Policy):
    """Preempts running best-effort jobs at random.

    ``seed``: which random order; the paper averages four of them. ``min_run_s``: as for `FitGpp`. ``resize_after_s``:
    as for `Fifo`.
    """

    seed: int = 0
    min_run_s: float = 600.0
    resize_after_s: float = 60.0

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """As for its class."""
        return stays_in_class(job, waiting, self.min_run_s, now)

    def queue(self) -> Queue:
        """Trial-and-error jobs first."""
        return Queue(by_class)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Admit in order; preempt for trial-and-error jobs."""
        draft = Draft(snapshot)

        def preempt_for(draft: Draft, job: Job) -> bool:
            return _preempt_until_it_fits(draft, job, self._shuffled(draft, job), self.min_run_s)

        admit_in_order(draft, preempt_for, self.resize_after_s)
        return draft.plan()

    def _shuffled(self, draft: Draft, job: Job) -> Iterator[Job]:
        """The jobs with room in an order that depends on nothing but the seed, the job, and how often it was tried."""
        jobs = [other for other in draft.snapshot.planned() if best_effort(other)]
        state = mix(self.seed, job.sequence, int(draft.snapshot.now * 1000))
        while jobs:
            state = mix(state, len(jobs), 0)
            index = state % len(jobs)
            jobs[index], jobs[-1] = jobs[-1], jobs[index]
            yield jobs.pop()


class Ends:
    """The best-effort jobs with room by when they would end, the last first; unknown ones at the end."""

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._known: dict[JobId, tuple[float, bool, int, Job]] = {}
        self._sorted: list[tuple[float, bool, int, Job]] = []

    def update(self, job: Job) -> None:
        """Take ``job`` in, or out."""
        entry = None
        if job.planned is not None and best_effort(job):
            end = expected_end(job, self._state.history, self._state.speedup)
            entry = (-end if end is not None else 0.0, not job.proved, job.sequence, job)
        known = self._known.get(job.id)
        if known == entry:
            return
        if known is not None:
            del self._sorted[bisect_left(self._sorted, known)]
            del self._known[job.id]
        if entry is not None:
            insort(self._sorted, entry)
            self._known[job.id] = entry

    def __iter__(self) -> Iterator[Job]:
        """The jobs, the one that would end last first."""
        return (entry[3] for entry in self._sorted)


def _preempt_until_it_fits(draft: Draft, job: Job, victims: Iterator[Job], min_run_s: float) -> bool:
    """Evict one victim after the other until ``job`` has room; nobody if all of them are not enough."""
    chosen: list[Job] = []
    room, nodes = None, None
    gang = draft.trial.is_gang(job)
    for victim in victims:
        allocation = draft.allocation(victim)
        if allocation is None or not may_be_preempted(draft, victim, min_run_s):
            continue
        draft.trial.give(allocation)
        chosen.append(victim)
        nodes = None if gang else allocation.node_ids
        room = draft.trial.find(job, job.gpus_min, nodes)
        if room is not None:
            break
    for victim in chosen:
        allocation = draft.allocation(victim)
        assert allocation is not None
        draft.trial.take(allocation)
    if room is None:
        return False
    claim(draft, job, (chosen, nodes), f"preempted by job {job.id}", named=3)
    return True
