"""All of the cluster's state, and the few ways in which it changes."""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator

from ebbtide_core.books import Books, Node
from ebbtide_core.job import TRANSITIONS, InvalidTransitionError, Job, QueueKey, derive_state
from ebbtide_core.model import Allocation, JobClass, JobId, JobState, NodeId


class Queue:
    """The jobs of one class that could be placed, in queue order."""

    def __init__(self) -> None:
        self._entries: list[tuple[QueueKey, JobId]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[QueueKey, JobId]]:
        return iter(self._entries)

    def add(self, key: QueueKey, job: JobId) -> None:
        """Put ``job`` in its place."""
        insort(self._entries, (key, job))

    def remove(self, key: QueueKey, job: JobId) -> None:
        """Take ``job`` out again."""
        index = bisect_left(self._entries, (key, job))
        if index == len(self._entries) or self._entries[index] != (key, job):
            raise KeyError(job)
        del self._entries[index]


class ClusterState:
    """Jobs, nodes and the queue; changed only by `ebbtide_core.fold`."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.unfinished: dict[JobId, Job] = {}
        self.operations: dict[str, JobId] = {}
        self.books = Books()
        self.queues = {job_class: Queue() for job_class in JobClass}
        self.claims: dict[JobId, Job] = {}
        self.resizing: dict[JobId, Job] = {}
        self.elastic: dict[JobId, Job] = {}
        self.unreachable: set[NodeId] = set()
        self.awaited: set[NodeId] = set()
        self.recovery_ends = 0.0
        self.quiesced = False
        self.epoch = 0
        self.touched: set[NodeId] = set()
        self._delayed: list[tuple[float, JobId]] = []
        self._deadlines: list[tuple[float, JobId]] = []

    # --- jobs ---

    def add_job(self, job: Job) -> None:
        """Take in a new job."""
        self.jobs[job.id] = self.unfinished[job.id] = job

    def refresh(self, job: Job, now: float) -> None:
        """Derive what follows from a job's facts: its state, and whether it stands in the queue."""
        new = derive_state(job, self.unreachable)
        if new is not job.state:
            if (job.state, new) not in TRANSITIONS:
                story = "\n".join(f"  {time:.3f} {event}" for time, event in job.story)
                raise InvalidTransitionError(f"job {job.id}: {job.state.value} -> {new.value}, after\n{story}")
            job.state = new
        if new.finished:
            self.unfinished.pop(job.id, None)
        self._index(job, now)

    def _index(self, job: Job, now: float) -> None:
        _keep(self.claims, job, job.claiming)
        _keep(self.elastic, job, job.elastic and job.planned is not None)
        _keep(self.resizing, job, job.running and _out_of_range(job))
        wanted = job.queue_key if job.waiting and job.planned is None else None
        if wanted is not None and job.not_before > now:
            heapq.heappush(self._delayed, (job.not_before, job.id))
            wanted = None
        if wanted == job.queued:
            return
        queue = self.queues[job.spec.job_class]
        if job.queued is not None:
            queue.remove(job.queued, job.id)
        if wanted is not None:
            queue.add(wanted, job.id)
        job.queued = wanted

    def waiting(self, job_class: JobClass | None = None) -> Iterator[Job]:
        """The jobs that could be placed, in queue order."""
        if job_class is not None:
            return (self.jobs[id] for _, id in self.queues[job_class])
        return (self.jobs[id] for _, id in heapq.merge(*self.queues.values()))

    # --- room ---

    def promise(self, job: Job, allocation: Allocation) -> None:
        """Plan ``allocation`` for the job, instead of what was planned before."""
        self.unplan(job)
        self.books.promise(job.id, allocation)
        self.touched.update(allocation.node_ids)
        job.planned = allocation

    def unplan(self, job: Job) -> None:
        """Plan nothing for the job any more."""
        if job.planned is not None:
            self.books.release(job.id, job.planned)
            self.touched.update(job.planned.node_ids)
            job.planned = None

    def jobs_on(self, node: Node) -> list[Job]:
        """The jobs with an attempt on ``node`` that is not proven over."""
        return [self.jobs[id] for id in sorted(node.attempts)]

    # --- times ---

    def set_deadline(self, job: Job, time: float) -> None:
        """Remember that the job's time limit ends at ``time`` if it runs on."""
        heapq.heappush(self._deadlines, (time, job.id))

    def due_deadlines(self, now: float) -> list[Job]:
        """The running jobs whose time limit may have ended; asked for once each."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            due.append(self.jobs[heapq.heappop(self._deadlines)[1]])
        return [job for job in due if job.state is JobState.RUNNING]

    def end_delays(self, now: float) -> None:
        """Let the jobs whose back-off is over stand in the queue again."""
        while self._delayed and self._delayed[0][0] <= now:
            job = self.jobs[heapq.heappop(self._delayed)[1]]
            self._index(job, now)

    def next_time(self) -> float | None:
        """When something is due next by itself."""
        times = [heap[0][0] for heap in (self._delayed, self._deadlines) if heap]
        if self.awaited:
            times.append(self.recovery_ends)
        return min(times, default=None)


def _keep(index: dict[JobId, Job], job: Job, wanted: bool) -> None:
    """Have ``job`` in the index, or not."""
    if wanted:
        index[job.id] = job
    else:
        index.pop(job.id, None)


def _out_of_range(job: Job) -> bool:
    """Whether the newest attempt has a GPU count that the job may not have any more."""
    return not job.gpus_min <= job.attempts[-1].allocation.share <= job.gpus_max
