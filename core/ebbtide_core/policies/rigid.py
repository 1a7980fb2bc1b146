"""Rigid policies give every job the most GPUs that it asked for, or none (the baselines of seed 001, §V-B).

An elastic job is treated as rigid at its greatest size (or all GPUs that it could have, if these are fewer), and only
its user resizes it. A job that does not fit is skipped, and does not block the jobs behind it. The paper leaves this
open, but only with skipping are utilisations almost the same for all policies, as it reports. `Fifo` does not skip.
"""

from dataclasses import dataclass
from typing import ClassVar

from ebbtide_core.admission.queues import DemandQueue, QueueKey, by_arrival
from ebbtide_core.estimates.work import remaining
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, JobId
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.elastic import fit_ranges
from ebbtide_core.planning.policy import Policy
from ebbtide_core.resources.books import Books
from ebbtide_core.resources.eligibility import Domain, open_to
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class RigidFcfs(Policy):
    """Starts jobs first come, first served, with p_max GPUs each (Rigid FCFS)."""

    rigid: ClassVar[bool] = True

    def queue(self) -> DemandQueue:
        """Order waiting jobs by arrival."""
        return DemandQueue(by_arrival)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start all jobs that fit, in order of arrival."""
        queue = snapshot.queue
        assert isinstance(queue, DemandQueue)
        return _start_all_that_fit(snapshot, queue)


@dataclass(frozen=True, slots=True)
class RigidShortest(Policy):
    """Starts the job with the least work first, with p_max GPUs each (Rigid Shortest).

    The work is estimated when the job begins to wait: from its declaration, its progress, earlier runs or its time
    limit, in this order. Jobs of unknown work come last.
    """

    rigid: ClassVar[bool] = True

    def ranking(self, state: PoolState) -> Ranking:
        """Index the waiting jobs by work."""
        return ByWork(state)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start all jobs that fit, the shortest first."""
        ranking: ByWork = snapshot.ranking
        return _start_all_that_fit(snapshot, ranking.waiting)


class ByWork:
    """The waiting jobs by the work that they have left, then by arrival; jobs of unknown work come last."""

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._keys: dict[JobId, QueueKey] = {}
        self.waiting = DemandQueue(self._key)

    def update(self, job: Job) -> None:
        """Add, update or remove ``job`` according to its state."""
        key = self._key(job) if job.queued is not None else None
        known = self._keys.get(job.id)
        if key == known:
            return
        if known is not None:
            self.waiting.remove(known, job)
            del self._keys[job.id]
        if key is not None:
            self.waiting.add(key, job)
            self._keys[job.id] = key

    def _key(self, job: Job) -> QueueKey:
        # The work left of a waiting job does not depend on the time.
        left = remaining(job, 0.0, self._state.history, self._state.speedup)
        return (left is None, 0.0 if left is None else left.work_s, job.sequence, job.gpus_min, job.gpus_max)


def _start_all_that_fit(snapshot: Snapshot, queue: DemandQueue) -> Plan:
    draft = Draft(snapshot)
    fit_ranges(draft)
    queue.first_fit(lambda job: _start(draft, job), lambda: draft.trial.most)
    head = queue.head()  # wording the reason for every waiting job would cost more than the pass
    if head is not None and head.id not in draft.placements:
        draft.wait(head, _size(snapshot.books, head))
    return draft.plan()


def _start(draft: Draft, job: Job) -> bool:
    allocation = draft.trial.find(job, _size(draft.snapshot.books, job))
    if allocation is None:
        return False
    draft.place(job, allocation, "starting")
    return True


def _size(books: Books, job: Job) -> int:
    """Return the greatest size of ``job``, or less if it is elastic and asks for more than there is."""
    if not job.elastic or job.gpus_max <= WHOLE:
        return job.gpus_max
    most = max((_most(job, domain) for domain in open_to(job, books, job.gpus_max)), default=0)
    return min(job.gpus_max, max(job.gpus_min, most * WHOLE))


def _most(job: Job, domain: Domain) -> int:
    """Return how many GPUs with enough memory there are for ``job`` in ``domain``."""
    memory = job.gpu_memory.requested_bytes
    large_enough = [
        min(domain.together(node), sum(1 for piece in domain.offered(node) if piece.mem_bytes >= memory))
        for node in domain.nodes.values()
    ]
    return sum(sorted(large_enough)[-job.spec.most_nodes :])
