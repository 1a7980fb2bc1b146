"""Keeps the jobs that could be placed in the order that a policy defines."""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from operator import itemgetter

from ebbtide_core.job.job import Job
from ebbtide_core.model.native import mypyc_attr

QueueKey = tuple[object, ...]
"""The key that orders the queue; the smallest is at its head.

It ends with the job's sequence number, so that no two keys are equal, and the job's size, so that it changes with that.
"""

Order = Callable[[Job], QueueKey]


class _SubQueue:
    """Jobs with the same demand and their keys, in order. Removing the first is cheap: the gap is closed later."""

    __slots__ = ("entries", "first")

    def __init__(self) -> None:
        self.entries: list[tuple[QueueKey, Job]] = []
        self.first = 0

    def add(self, entry: tuple[QueueKey, Job]) -> None:
        if not self.entries or entry > self.entries[-1]:
            self.entries.append(entry)
        else:
            insort(self.entries, entry, self.first)

    def remove(self, key: QueueKey, job: Job) -> None:
        index = bisect_left(self.entries, (key,), self.first)
        if index == len(self.entries) or self.entries[index][1] is not job:
            raise KeyError(job.id)
        if index > self.first:
            del self.entries[index]
            return
        self.first += 1
        if self.first * 2 > len(self.entries):
            del self.entries[: self.first]
            self.first = 0

    def behind(self, key: QueueKey) -> int:
        """Return the index of the first entry behind ``key``."""
        return bisect_right(self.entries, key, self.first, key=itemgetter(0))


@mypyc_attr(allow_interpreted_subclasses=True)
class _SubQueues:
    """Jobs in order, in one `_SubQueue` for each demand."""

    __slots__ = ("_demand", "_demands", "by_demand")

    def __init__(
        self, demand: Callable[[Job], Hashable], keys: Sequence[QueueKey] = (), jobs: Sequence[Job] = ()
    ) -> None:
        """Take the ``jobs`` with their ``keys``, both in order, in linear time."""
        self._demand = demand
        self._demands: dict[QueueKey, Hashable] = dict(zip(keys, map(demand, jobs), strict=True))
        self.by_demand: dict[Hashable, _SubQueue] = defaultdict(_SubQueue)
        for alike, entry in zip(self._demands.values(), zip(keys, jobs, strict=True), strict=True):
            self.by_demand[alike].entries.append(entry)

    def __len__(self) -> int:
        return len(self._demands)

    def add(self, key: QueueKey, job: Job) -> None:
        demand = self._demands[key] = self._demand(job)
        self.by_demand[demand].add((key, job))

    def remove(self, key: QueueKey, job: Job) -> None:
        demand = self._demands.pop(key)
        part = self.by_demand[demand]
        part.remove(key, job)
        if not part.entries:
            del self.by_demand[demand]

    def alike(self, key: QueueKey) -> list[Job]:
        """Return the jobs with the demand of the job with that key, in order."""
        part = self.by_demand[self._demands[key]]
        return [job for _, job in part.entries[part.first :]]

    def behind(self, key: QueueKey) -> "list[_Head]":
        """Return the first job behind ``key`` of each demand, except the demand of the job with that key."""
        own = self.by_demand[self._demands[key]]
        places = [(part.entries, part.behind(key)) for part in self.by_demand.values() if part is not own]
        return [(entries[index], entries, index) for entries, index in places if index < len(entries)]


_Head = tuple[tuple[QueueKey, Job], list[tuple[QueueKey, Job]], int]
"""A job with its key, the entries of its `_SubQueue`, and its index among them."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Queue:
    """Waiting jobs, ordered by the key that ``order`` returns; it is called again whenever a job changes."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._keys: list[QueueKey] = []
        self._jobs: list[Job] = []
        self._grouped: _SubQueues | None = None
        """The same jobs by demand; built when a policy first leaves jobs out, and kept until the queue is empty."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """Iterate over the jobs in order; the queue may not change meanwhile."""
        return iter(self._jobs)

    def add(self, key: QueueKey, job: Job) -> None:
        """Insert ``job`` at its place."""
        if self._grouped is not None:
            self._grouped.add(key, job)
        keys = self._keys
        if not keys or key > keys[-1]:
            keys.append(key)
            self._jobs.append(job)
            return
        index = bisect_left(keys, key)
        keys.insert(index, key)
        self._jobs.insert(index, job)

    def remove(self, key: QueueKey, job: Job) -> None:
        """Remove ``job``, which is in the queue with ``key``; raise KeyError if it is not."""
        index = bisect_left(self._keys, key)
        if index == len(self._keys) or self._jobs[index] is not job:
            raise KeyError(job.id)
        del self._keys[index]
        del self._jobs[index]
        if not self._jobs:
            self._grouped = None
        elif self._grouped is not None:
            self._grouped.remove(key, job)

    def place(self, job: Job) -> QueueKey:
        """Return what ``job``, which is in the queue, stands there by: less comes first."""
        assert job.queued is not None
        return job.queued

    def turns(self) -> "DistinctJobs":
        """Iterate over the jobs in order, with the choice to leave some out; the queue may not change meanwhile."""
        return DistinctJobs(self)

    def of_other_demands(self, job: Job) -> list[_Head]:
        """Return the first job behind ``job`` of each other demand."""
        if self._grouped is None:
            self._grouped = _SubQueues(demand_of, self._keys, self._jobs)
        return self._grouped.behind(self.order(job))


class DistinctJobs:
    """An iterator over the jobs of a queue that can leave out all jobs with one demand, however many, at no cost."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._jobs = iter(queue)
        self._heads: list[_Head] | None = None  # a heap of the jobs that are left, once some were left out
        self._last: Job | None = None

    def __iter__(self) -> "DistinctJobs":
        return self

    def __next__(self) -> Job:
        if self._heads is None:
            self._last = next(self._jobs)
            return self._last
        if self._last is not None:
            _, entries, index = self._heads[0]
            if index + 1 < len(entries):
                heapreplace(self._heads, (entries[index + 1], entries, index + 1))
            else:
                heappop(self._heads)
        if not self._heads:
            raise StopIteration
        self._last = self._heads[0][0][1]
        return self._last

    def skip_demand(self) -> None:
        """Leave out all further jobs with the same demand as the job that was returned last."""
        assert self._last is not None, "no job has had its turn yet, or its demand is left out already"
        if self._heads is None:
            self._heads = self._queue.of_other_demands(self._last)
            heapify(self._heads)
        else:
            heappop(self._heads)
        self._last = None


@mypyc_attr(allow_interpreted_subclasses=True)
class DemandQueue(Queue):
    """A queue for first-fit policies: once a job does not fit, no job with the same demand is tried.

    The cost of a pass over the candidates grows with the number of different demands, not of jobs. ``demand`` returns a
    job's demand, which may only change together with the job's key.
    """

    def __init__(self, order: Order, demand: Callable[[Job], Hashable] | None = None) -> None:
        super().__init__(order)
        self._subqueues = _SubQueues(demand or demand_of)
        self._head: tuple[QueueKey, Job] | None = None
        """The first job with its key; None if it must be searched for."""

    def __len__(self) -> int:
        return len(self._subqueues)

    def __iter__(self) -> Iterator[Job]:
        parts = self._subqueues.by_demand.values()
        return iter([job for _, job in sorted(entry for part in parts for entry in part.entries[part.first :])])

    def add(self, key: QueueKey, job: Job) -> None:
        """Insert ``job`` among the jobs with the same demand."""
        self._subqueues.add(key, job)
        if self._head is not None and key < self._head[0]:
            self._head = key, job

    def remove(self, key: QueueKey, job: Job) -> None:
        """Remove ``job``, which is in the queue with ``key``."""
        self._subqueues.remove(key, job)
        if self._head is not None and key == self._head[0]:
            self._head = None

    def of_other_demands(self, job: Job) -> list[_Head]:
        """Return the first job behind ``job`` of each other demand."""
        return self._subqueues.behind(self.order(job))

    def head(self) -> Job | None:
        """Return the first job, None if the queue is empty."""
        if self._head is None and self._subqueues.by_demand:
            self._head = min([part.entries[part.first] for part in self._subqueues.by_demand.values()])
        return None if self._head is None else self._head[1]

    def kinds(self) -> Iterator[tuple[Job, int]]:
        """Yield the first job of each demand, and the number of jobs with that demand."""
        parts = self._subqueues.by_demand.values()
        return ((part.entries[part.first][1], len(part.entries) - part.first) for part in parts)

    def alike(self, job: Job) -> list[Job]:
        """Return the jobs with the demand of ``job``, which is in the queue, in order."""
        return self._subqueues.alike(self.order(job))

    def first_fit(
        self, fits: Callable[[Job], bool], most: Callable[[], int], others: Iterable[tuple[QueueKey, Job]] = ()
    ) -> None:
        """Offer the jobs to ``fits`` in order; leave out those with a demand that did not fit before.

        ``most`` returns the largest share that may still be free, in parts; jobs that need more are left out, too.
        ``others`` are offered as well, each at the place of its key, whether or not jobs with its demand fitted.
        """
        room = most()
        heads = [
            (part.entries[part.first], part.entries, part.first)
            for part in self._subqueues.by_demand.values()
            if part.entries[part.first][1].gpus_min <= room
        ]
        heads += [(other, [other], 0) for other in others]
        heapify(heads)
        while heads:
            (_, job), entries, index = heads[0]
            if job.gpus_min <= room and fits(job):
                room = most()
                if index + 1 < len(entries):
                    heapreplace(heads, (entries[index + 1], entries, index + 1))
                    continue
            heappop(heads)


def demand_of(job: Job) -> Hashable:
    """Return the job's demand: everything that decides where ``job`` fits."""
    spec = job.spec
    return (job.gpus_min, job.gpus_max, spec.cpus, spec.mem_bytes, *demand_besides_size(job))


def demand_besides_size(job: Job) -> tuple[Hashable, ...]:
    """Return what decides where ``job`` fits, apart from how many GPUs and CPUs, and how much memory, it needs."""
    spec = job.spec
    return (
        job.gpu_memory.requested_bytes and (job.gpu_memory.requested_bytes, spec.gpu_mem_bytes),
        spec.max_nodes,
        spec.nodes,
        spec.spread,
        *where_of(job),
        job.next.need_s,
        job.next.script,
    )


def where_of(job: Job) -> tuple[Hashable, ...]:
    """Return what keeps ``job`` to some of the nodes or GPUs, however much it needs of them."""
    spec, eligibility = job.spec, job.eligibility
    return (
        job.saved.root_id,
        spec.move_checkpoints and not job.saved.move_failure,
        job.pinned_allocation,
        eligibility.constrained and (spec.needs, eligibility.excluded, eligibility.excluded_gpus),
    )


def by_arrival(job: Job) -> QueueKey:
    """Return the key that puts preempted jobs first, and else keeps the order of submission (FitGpp, seed 000 §2.1)."""
    return (not job.next.at_head, job.sequence, job.gpus_min, job.gpus_max)
