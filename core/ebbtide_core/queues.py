"""The jobs that could be placed, in the order in which a policy wants to see them."""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Any

from ebbtide_core.job import Job

QueueKey = tuple[Any, ...]
"""What orders the queue; smaller is nearer to its head. It ends with the job's sequence number, so no two are equal."""

Order = Callable[[Job], QueueKey]


class Queue:
    """Waiting jobs in the order that ``order`` gives them; it is asked again whenever a job changes."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._keys: list[QueueKey] = []
        self._jobs: list[Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """The jobs, the head of the line first; the queue may not change meanwhile."""
        return iter(self._jobs)

    def add(self, key: QueueKey, job: Job) -> None:
        """Put ``job`` in its place."""
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


class ShapedQueue(Queue):
    """A queue for first-fit policies: once a job does not fit, none with the same demand has to be tried.

    Going over the candidates of a pass costs as much as there are different demands, not as there are jobs. What
    a job needs may only change together with its key. ``shape`` says which jobs are alike.
    """

    def __init__(self, order: Order, shape: Callable[[Job], Hashable] | None = None) -> None:
        super().__init__(order)
        self._shape = shape or shape_of
        self._lines: dict[Hashable, _Line] = {}
        self._shapes: dict[QueueKey, Hashable] = {}
        self._head: tuple[QueueKey, Job] | None = None
        """The head of the line, None if it has to be looked for."""

    def __len__(self) -> int:
        return len(self._shapes)

    def __iter__(self) -> Iterator[Job]:
        lines = self._lines.values()
        return iter([job for _, job in sorted(entry for line in lines for entry in line.entries[line.first :])])

    def add(self, key: QueueKey, job: Job) -> None:
        """Put ``job`` in the line of those that need the same."""
        shape = self._shapes[key] = self._shape(job)
        line = self._lines.get(shape)
        if line is None:
            line = self._lines[shape] = _Line()
        line.add((key, job))
        if self._head is not None and key < self._head[0]:
            self._head = key, job

    def remove(self, key: QueueKey, job: Job) -> None:
        """Take ``job`` out again."""
        shape = self._shapes.pop(key)
        line = self._lines[shape]
        line.remove(key, job)
        if not line.entries:
            del self._lines[shape]
        if self._head is not None and key == self._head[0]:
            self._head = None

    def head(self) -> Job | None:
        """The head of the line."""
        if self._head is None and self._lines:
            self._head = min([line.entries[line.first] for line in self._lines.values()])
        return None if self._head is None else self._head[1]

    def kinds(self) -> Iterator[tuple[Job, int]]:
        """The first of each line, and how many are in it."""
        return ((line.entries[line.first][1], len(line.entries) - line.first) for line in self._lines.values())

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
            for line in self._lines.values()
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
        job.own_room,
        job.choosy and (spec.needs, job.excluded, job.excluded_gpus),
    )


def by_arrival(job: Job) -> QueueKey:
    """Those that were preempted first, each in order of submission (FitGpp, seed 000 §2.1)."""
    return (not job.returns, job.sequence)
