"""The jobs that could be placed, in the order in which a policy wants to see them."""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from operator import itemgetter

from ebbtide_core.job.job import Job

QueueKey = tuple[object, ...]
"""What orders the queue; smaller is nearer to its head.

It ends with the job's sequence number, so that no two are equal, and its size: one whose size is changed while it waits
goes to those of its size.
"""

Order = Callable[[Job], QueueKey]


class _Line:
    """Jobs with their keys in order. Taking the first costs nothing, however long the line: the gap is closed later."""

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
        """The index of the first entry behind ``key``."""
        return bisect_right(self.entries, key, self.first, key=itemgetter(0))


class _Lines:
    """Jobs in lines: those that are alike stand in one."""

    __slots__ = ("_shape", "_shapes", "by_shape")

    def __init__(
        self, shape: Callable[[Job], Hashable], keys: Sequence[QueueKey] = (), jobs: Sequence[Job] = ()
    ) -> None:
        """Of these ``jobs``, which are in order; there may be very many."""
        self._shape = shape
        self._shapes: dict[QueueKey, Hashable] = dict(zip(keys, map(shape, jobs), strict=True))
        self.by_shape: dict[Hashable, _Line] = defaultdict(_Line)
        for alike, entry in zip(self._shapes.values(), zip(keys, jobs, strict=True), strict=True):
            self.by_shape[alike].entries.append(entry)

    def __len__(self) -> int:
        return len(self._shapes)

    def add(self, key: QueueKey, job: Job) -> None:
        shape = self._shapes[key] = self._shape(job)
        self.by_shape[shape].add((key, job))

    def remove(self, key: QueueKey, job: Job) -> None:
        shape = self._shapes.pop(key)
        line = self.by_shape[shape]
        line.remove(key, job)
        if not line.entries:
            del self.by_shape[shape]

    def behind(self, key: QueueKey) -> "list[_Head]":
        """The first of each line behind the job of that key, but for its own line."""
        own = self.by_shape[self._shapes[key]]
        places = [(line.entries, line.behind(key)) for line in self.by_shape.values() if line is not own]
        return [(entries[index], entries, index) for entries, index in places if index < len(entries)]


_Head = tuple[tuple[QueueKey, Job], list[tuple[QueueKey, Job]], int]
"""A job with its key, the entries of its line, and its index among them."""


class Queue:
    """Waiting jobs in the order that ``order`` gives them; it is asked again whenever a job changes."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._keys: list[QueueKey] = []
        self._jobs: list[Job] = []
        self._lines: _Lines | None = None
        """The same jobs; made when some are first left out, and kept until the queue is empty."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """The jobs, the head of the line first; the queue may not change meanwhile."""
        return iter(self._jobs)

    def add(self, key: QueueKey, job: Job) -> None:
        """Put ``job`` in its place."""
        if self._lines is not None:
            self._lines.add(key, job)
        keys = self._keys
        if not keys or key > keys[-1]:
            keys.append(key)
            self._jobs.append(job)
            return
        index = bisect_left(keys, key)
        keys.insert(index, key)
        self._jobs.insert(index, job)

    def remove(self, key: QueueKey, job: Job) -> None:
        """Take ``job`` out again; ``key`` is where it stands."""
        index = bisect_left(self._keys, key)
        if index == len(self._keys) or self._jobs[index] is not job:
            raise KeyError(job.id)
        del self._keys[index]
        del self._jobs[index]
        if not self._jobs:
            self._lines = None
        elif self._lines is not None:
            self._lines.remove(key, job)

    def turns(self) -> "DistinctJobs":
        """The jobs, the head of the line first; the queue may not change meanwhile."""
        return DistinctJobs(self)

    def not_alike(self, job: Job) -> list[_Head]:
        """The jobs behind ``job`` that need anything else, in lines of which each is in order."""
        if self._lines is None:
            self._lines = _Lines(shape_of, self._keys, self._jobs)
        return self._lines.behind(self.order(job))


class DistinctJobs:
    """The jobs of a queue, one after the other; leaving out those that are alike costs nothing, however many wait."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._jobs = iter(queue)
        self._heads: list[_Head] | None = None  # what is left, as a heap, once somebody was left out
        self._last: Job | None = None

    def __iter__(self) -> "DistinctJobs":
        return self

    def __next__(self) -> Job:
        if self._heads is None:
            self._last = next(self._jobs)
            return self._last
        if self._last is not None:
            _, line, index = self._heads[0]
            if index + 1 < len(line):
                heapreplace(self._heads, (line[index + 1], line, index + 1))
            else:
                heappop(self._heads)
        if not self._heads:
            raise StopIteration
        self._last = self._heads[0][0][1]
        return self._last

    def leave_out_alike(self) -> None:
        """Leave out all that need the same as the job whose turn it is."""
        assert self._last is not None, "nobody has had a turn yet, or it was said already"
        if self._heads is None:
            self._heads = self._queue.not_alike(self._last)
            heapify(self._heads)
        else:
            heappop(self._heads)
        self._last = None


class ShapedQueue(Queue):
    """A queue for first-fit policies: once a job does not fit, none with the same demand has to be tried.

    Going over the candidates of a pass costs as much as there are different demands, not as there are jobs. What
    a job needs may only change together with its key. ``shape`` says which jobs are alike.
    """

    def __init__(self, order: Order, shape: Callable[[Job], Hashable] | None = None) -> None:
        super().__init__(order)
        self._line_up = _Lines(shape or shape_of)
        self._head: tuple[QueueKey, Job] | None = None
        """The head of the line, None if it has to be looked for."""

    def __len__(self) -> int:
        return len(self._line_up)

    def __iter__(self) -> Iterator[Job]:
        lines = self._line_up.by_shape.values()
        return iter([job for _, job in sorted(entry for line in lines for entry in line.entries[line.first :])])

    def add(self, key: QueueKey, job: Job) -> None:
        """Put ``job`` in the line of those that need the same."""
        self._line_up.add(key, job)
        if self._head is not None and key < self._head[0]:
            self._head = key, job

    def remove(self, key: QueueKey, job: Job) -> None:
        """Take ``job`` out again."""
        self._line_up.remove(key, job)
        if self._head is not None and key == self._head[0]:
            self._head = None

    def not_alike(self, job: Job) -> list[_Head]:
        """As for any queue."""
        return self._line_up.behind(self.order(job))

    def head(self) -> Job | None:
        """The head of the line."""
        if self._head is None and self._line_up.by_shape:
            self._head = min([line.entries[line.first] for line in self._line_up.by_shape.values()])
        return None if self._head is None else self._head[1]

    def kinds(self) -> Iterator[tuple[Job, int]]:
        """The first of each line, and how many are in it."""
        lines = self._line_up.by_shape.values()
        return ((line.entries[line.first][1], len(line.entries) - line.first) for line in lines)

    def first_fit(
        self, fits: Callable[[Job], bool], most: Callable[[], int], others: Iterable[tuple[QueueKey, Job]] = ()
    ) -> None:
        """Offer the jobs to ``fits`` in order, leaving out those whose like did not fit.

        ``most`` is the greatest share that may still be free, in parts: jobs that need more are not offered either.
        ``others`` are offered, too, each where its key belongs, whether or not its like did fit.
        """
        room = most()
        heads = [
            (line.entries[line.first], line.entries, line.first)
            for line in self._line_up.by_shape.values()
            if line.entries[line.first][1].gpus_min <= room
        ]
        heads += [(other, [other], 0) for other in others]
        heapify(heads)
        while heads:
            (_, job), line, index = heads[0]
            if job.gpus_min <= room and fits(job):
                room = most()
                if index + 1 < len(line):
                    heapreplace(heads, (line[index + 1], line, index + 1))
                    continue
            heappop(heads)


def shape_of(job: Job) -> Hashable:
    """All that decides where ``job`` fits."""
    spec = job.spec
    return (
        job.gpus_min,
        job.gpus_max,
        job.gpu_mem_bytes and (job.gpu_mem_bytes, spec.gpu_mem_bytes),
        spec.cpus,
        spec.mem_bytes,
        spec.max_nodes,
        spec.nodes,
        spec.spread,
        job.checkpoint_root_id,
        spec.move_checkpoints and not job.move_failure,
        job.pinned_allocation,
        job.constrained and (spec.needs, job.excluded, job.excluded_gpus),
    )


def by_arrival(job: Job) -> QueueKey:
    """Those that were preempted first, each in order of submission (FitGpp, seed 000 §2.1)."""
    return (not job.returns, job.sequence, job.gpus_min, job.gpus_max)
