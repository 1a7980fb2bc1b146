"""FitGpp's baselines: victims by longest remaining time (LRTP, from Big-C), or at random (RAND; seed 000 §3).

Both take victims from the whole cluster, one after the other, until the trial-and-error job fits somewhere, as the
paper's appendix says. They serve only for comparison: they preempt many jobs whose room no other job can use.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from ebbtide_core.admission.queues import Queue
from ebbtide_core.estimates.work import expected_end
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobId
from ebbtide_core.planning.chance import mix
from ebbtide_core.planning.classes import admit_in_order, best_effort, by_class, may_be_preempted, stays_in_class
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.policy import Policy
from ebbtide_core.planning.preemption import claim
from ebbtide_core.planning.staying import Stay
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Lrtp(Policy):
    """Preempts the best-effort job with the longest remaining time first.

    The remaining time is estimated from the declared work, the progress, earlier runs or the time limit, in this order;
    jobs for which it is unknown come last. ``min_run_s``: as for `FitGpp`. ``resize_after_s``: as for `Fifo`.
    """

    min_run_s: float = 600.0
    resize_after_s: float = 60.0

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """Apply the rule by class."""
        return stays_in_class(job, waiting, self.min_run_s, now)

    def queue(self) -> Queue:
        """Order trial-and-error jobs before best-effort ones."""
        return Queue(by_class)

    def ranking(self, state: PoolState) -> Ranking:
        """Index the best-effort jobs with room by expected end."""
        return Ends(state)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Admit jobs in order, and preempt best-effort jobs for trial-and-error ones."""
        draft = Draft(snapshot)
        ends: Ends = snapshot.ranking

        def preempt_for(draft: Draft, job: Job) -> bool:
            return _preempt_until_it_fits(draft, job, iter(ends), self.min_run_s)

        admit_in_order(draft, preempt_for, self.resize_after_s)
        return draft.plan()


@dataclass(frozen=True, slots=True)
class Rand(Policy):
    """Preempts running best-effort jobs at random.

    ``seed``: seeds the random order; the paper averages four runs. ``min_run_s``: as for `FitGpp`. ``resize_after_s``:
    as for `Fifo`.
    """

    seed: int = 0
    min_run_s: float = 600.0
    resize_after_s: float = 60.0

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """Apply the rule by class."""
        return stays_in_class(job, waiting, self.min_run_s, now)

    def queue(self) -> Queue:
        """Order trial-and-error jobs before best-effort ones."""
        return Queue(by_class)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Admit jobs in order, and preempt best-effort jobs for trial-and-error ones."""
        draft = Draft(snapshot)

        def preempt_for(draft: Draft, job: Job) -> bool:
            return _preempt_until_it_fits(draft, job, self._shuffled(draft, job), self.min_run_s)

        admit_in_order(draft, preempt_for, self.resize_after_s)
        return draft.plan()

    def _shuffled(self, draft: Draft, job: Job) -> Iterator[Job]:
        """Yield the best-effort jobs with room in an order that depends only on the seed, ``job`` and the time."""
        jobs = [other for other in draft.snapshot.planned() if best_effort(other)]
        state = mix(self.seed, job.sequence, int(draft.snapshot.now * 1000))
        while jobs:
            state = mix(state, len(jobs), 0)
            index = state % len(jobs)
            jobs[index], jobs[-1] = jobs[-1], jobs[index]
            yield jobs.pop()


class Ends:
    """The best-effort jobs with room by expected end, the latest first; jobs of unknown end come last."""

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._known: dict[JobId, tuple[float, bool, int, Job]] = {}
        self._sorted: list[tuple[float, bool, int, Job]] = []

    def update(self, job: Job) -> None:
        """Add, update or remove ``job`` according to its state."""
        entry = None
        if job.planned is not None and best_effort(job):
            end = expected_end(job, self._state.history, self._state.speedup)
            entry = (-end if end is not None else 0.0, not job.suspending.proved, job.sequence, job)
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
        """Yield the jobs, the one with the latest expected end first."""
        return (entry[3] for entry in self._sorted)


def _preempt_until_it_fits(draft: Draft, job: Job, victims: Iterator[Job], min_run_s: float) -> bool:
    """Evict one victim after the other until ``job`` has room; none if all together make no room."""
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
