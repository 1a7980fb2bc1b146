"""Shares of GPUs: each job chooses the GPU with the fewest jobs, and each GPU is divided equally (seed 001, §IV-A).

A job that has a place keeps it, unless another GPU would have at least two jobs fewer.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, GpuId, GpuSlice, JobId, NodeAllocation
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.resizing import fits_beside, on_own_gpus
from ebbtide_core.planning.seats import MOST_SHARING, size_at_most
from ebbtide_core.resources.books import Books, Node
from ebbtide_core.resources.checkpoint_location import sees_checkpoint
from ebbtide_core.resources.eligibility import may_use
from ebbtide_core.resources.gpu_selection import memory_of

Now = Mapping[JobId, Allocation]
"""The present allocations of the jobs that may be changed."""


@dataclass(slots=True)
class GpuPlace:
    """One GPU with what is ``free`` of it (parts) and its free ``memory`` (bytes), and the jobs that chose it.

    ``others`` counts the jobs on the GPU that cannot be changed.
    """

    books: Books
    node: Node
    gpu: GpuSlice
    order: int
    free: int = WHOLE
    memory: int = 0
    others: int = 0
    jobs: list[Job] = field(default_factory=list)
    least: int = 0
    """The greatest of the smallest sizes of ``jobs``."""
    asked: int = 0
    """The memory, in bytes, of those of ``jobs`` that need the same with any share."""
    in_proportion: list[Job] = field(default_factory=list)
    """Those of ``jobs`` whose memory is in proportion to their share."""
    unchanged: bool = False
    """Whether ``jobs`` are those that have the GPU, each with the share that it has."""

    @property
    def count(self) -> int:
        """The number of jobs that would share the GPU."""
        return self.others + len(self.jobs)

    def share(self, count: int) -> int:
        """Return the equal share of ``count`` jobs: the greatest 1/n of a GPU that each can have; 0 if none."""
        n = -(-WHOLE * count // self.free) if self.free else MOST_SHARING + 1
        return WHOLE // n if 0 < n <= MOST_SHARING else 0

    def takes(self, job: Job) -> bool:
        """Return whether ``job`` may choose the GPU: no job gets less than its smallest size, and memory suffices."""
        share = self.share(len(self.jobs) + 1)
        if not share or share < self.least or share < job.gpus_min or not sees_checkpoint(job, self.node):
            return False
        if (job.eligibility.constrained or self.books.heterogeneous) and not may_use(
            job, self.books, self.node.id, self.gpu.gpu
        ):
            return False
        if self.books.anti_affinity is not None and self.gpu.gpu in self.books.anti_affinity.gpus(job.id, self.node):
            return False
        needed = self.asked + self.needs(job, share)
        for each in self.in_proportion:
            needed += self.needs(each, share)
        return needed <= self.memory

    def is_open_to(self, job: Job) -> bool:
        """Return whether ``job`` may come to the GPU: no other user has booked it from before the job could leave."""
        booked = self.books.booked
        return booked is None or self.gpu.gpu not in booked.barred(job).get(self.node.id, ())

    def keeps(self, jobs: list[Job], now: Now) -> bool:
        """Add all of ``jobs``, which have the GPU; return False, with none added, unless it is plain that none changes.

        That is plain if each has an equal share and needs the same memory with any share: then it is the outcome of
        adding one after the other while the GPU `takes` it, because a share of fewer jobs is no smaller.
        """
        share, books = self.share(len(jobs)), self.books
        if not share or books.heterogeneous or books.anti_affinity is not None:
            return False
        asked = least = 0
        for job in jobs:
            if now[job.id].share != share or not job.gpus_min <= share <= job.gpus_max:
                return False
            if job.eligibility.constrained or not job.gpu_memory.requested_bytes or not sees_checkpoint(job, self.node):
                return False
            asked += memory_of(job, share, self.gpu)
            least = max(least, job.gpus_min)
        if asked > self.memory:
            return False
        self.jobs, self.asked, self.least, self.unchanged = jobs, asked, least, True
        return True

    def add(self, job: Job) -> None:
        """Add ``job`` to the jobs that chose the GPU."""
        self.unchanged = False
        self.jobs.append(job)
        self.least = max(self.least, job.gpus_min)
        if job.gpu_memory.requested_bytes:
            self.asked += memory_of(job, job.gpus_min, self.gpu)
        else:
            self.in_proportion.append(job)

    def last(self, pinned: AbstractSet[JobId]) -> Job | None:
        """Return the latest of the jobs that may move to another GPU; None if all are ``pinned``."""
        return next((job for job in reversed(self.jobs) if job.id not in pinned), None)

    def drop(self, job: Job) -> None:
        """Remove ``job``."""
        self.unchanged = False
        self.jobs.remove(job)
        self.least = max((each.gpus_min for each in self.jobs), default=0)
        if job.gpu_memory.requested_bytes:
            self.asked -= memory_of(job, job.gpus_min, self.gpu)
        else:
            self.in_proportion.remove(job)

    def needs(self, job: Job, share: int) -> int:
        """Return the GPU memory that ``job`` needs with ``share``, in bytes."""
        return memory_of(job, size_at_most(job, share), self.gpu)

    def allocations(self, now: Now) -> Iterator[tuple[Job, Allocation]]:
        """Yield what each job of the GPU gets; that is its present allocation if nothing changes."""
        share = self.share(len(self.jobs))
        for job in self.jobs:
            has, size = now.get(job.id), size_at_most(job, share)
            if has is not None and has.share == size and has.nodes[0].gpus[0].gpu == self.gpu.gpu:
                yield job, has
            elif size:  # only a job that may not move yet can have size 0
                yield job, self._allocation(job, size)

    def _allocation(self, job: Job, size: int) -> Allocation:
        gpu = self.gpu if size == WHOLE else GpuSlice(self.gpu.gpu, size, self.needs(job, size))
        return Allocation((NodeAllocation(self.node.id, (gpu,), job.spec.cpus, job.spec.mem_bytes),))


def balanced(
    draft: Draft, jobs: Sequence[Job], now: Now, pinned: AbstractSet[JobId]
) -> list[tuple[Job, Allocation | None]]:
    """Return the allocation that each of ``jobs``, in order of arrival, should have; None for a job that has to wait.

    Jobs on GPUs where nothing changes may be left out. ``now`` holds the present allocations; of these jobs, the
    ``pinned`` ones stay on their GPU in any case. Jobs that need whole GPUs get as many as they need, and choose first.
    The ``draft`` is changed and cannot be used afterwards.
    """
    in_order = sorted(jobs, key=lambda job: job.id not in pinned) if pinned else jobs
    found = _whole(draft, in_order, now)
    seats = _seats(draft, now)
    stay = _keep(seats, in_order, now, pinned)
    _choose(seats, [job for job in jobs if job.gpus_min < WHOLE and job.id not in stay])
    if stay:
        _even_out(seats, pinned)
    found |= {job.id: allocation for seat in seats if not seat.unchanged for job, allocation in seat.allocations(now)}
    # Most jobs stay as they are, so only the changed ones have to be checked for whether they fit.
    unchanged = {job.id for seat in seats if seat.unchanged for job in seat.jobs}
    others = [job for job in jobs if job.id not in unchanged]
    changed = [job for job in others if job.gpus_min < WHOLE and found.get(job.id) is not now.get(job.id)]
    if draft.lifted:
        moved = {job.id for job in changed}
        for job in jobs:
            if job.id in draft.lifted and job.gpus_min < WHOLE and job.id not in moved:
                _take(draft, now[job.id])
    for job in changed:
        _lift(draft, job, now)
    for job in changed:
        allocation = found.get(job.id)
        if allocation is not None and not fits_beside(draft.trial, allocation):
            found[job.id] = None
        _take(draft, found.get(job.id))
    return [(job, found.get(job.id)) for job in others]


def _whole(draft: Draft, jobs: Sequence[Job], now: Now) -> dict[JobId, Allocation | None]:
    """Return what jobs that need whole GPUs get, as if no others had any.

    All ``jobs`` are lifted, unless every job of whole GPUs keeps what it has.
    """
    whole = [job for job in jobs if job.gpus_min >= WHOLE]
    if all(job.id in now and now[job.id].share == job.gpus_min for job in whole):
        return {job.id: now[job.id] for job in whole}
    for job in jobs:
        _lift(draft, job, now)
    found: dict[JobId, Allocation | None] = {}
    for job in whole:
        kept = on_own_gpus(draft, job, now[job.id], job.gpus_min) if job.id in now else None
        found[job.id] = kept or draft.trial.find(job, job.gpus_min)
        _take(draft, found[job.id])
    return found


def _lift(draft: Draft, job: Job, now: Now) -> None:
    if job.id in now and job.id not in draft.lifted:
        draft.lift(job)


def _take(draft: Draft, allocation: Allocation | None) -> None:
    if allocation is not None:
        draft.trial.take(allocation)


def _seats(draft: Draft, now: Now) -> list[GpuPlace]:
    """Return, in order, the GPUs of which a part is free or held by sharing jobs that may be changed."""
    trial, shares, memory = draft.trial, dict[GpuId, int](), dict[GpuId, int]()
    for id, has in now.items():
        if id not in draft.lifted and draft.snapshot.job(id).gpus_min < WHOLE:
            for piece in has.nodes[0].gpus:
                gpu = piece.gpu
                shares[gpu] = shares.get(gpu, 0) + piece.share
                if piece.share < WHOLE:  # the memory of whole GPUs is not booked
                    memory[gpu] = memory.get(gpu, 0) + piece.mem_bytes
    others = Counter(_gpu_of(draft, job) for job in draft.snapshot.planned() if job.id not in now)
    books = draft.snapshot.books
    seats: list[GpuPlace] = []
    for node in trial.nodes.values():
        use = trial.use(node.id)
        for gpu, whole in node.slices.items():
            free = shares.get(gpu, 0) if gpu in use.whole else WHOLE - use.shares.get(gpu, 0) + shares.get(gpu, 0)
            if free:
                left = whole.mem_bytes - use.gpu_mem.get(gpu, 0) + memory.get(gpu, 0)
                seats.append(GpuPlace(books, node, whole, len(seats), free, left, others.get(gpu, 0)))
    return seats


def _gpu_of(draft: Draft, job: Job) -> GpuId | None:
    """Return the GPU of which ``job`` has a part; None if it has no part of a single GPU."""
    allocation = draft.allocation(job)
    return allocation.nodes[0].gpus[0].gpu if allocation is not None and 0 < allocation.share < WHOLE else None


def _keep(seats: list[GpuPlace], jobs: Sequence[Job], now: Now, pinned: AbstractSet[JobId]) -> set[JobId]:
    """Leave those of ``jobs`` that share GPUs on them where possible; return the ids of those that stay."""
    on_gpu: dict[GpuId, list[Job]] = {}
    for job in jobs:
        if job.gpus_min < WHOLE and (has := now.get(job.id)) is not None:
            on_gpu.setdefault(has.nodes[0].gpus[0].gpu, []).append(job)
    for seat in seats:
        here = on_gpu.get(seat.gpu.gpu)
        if here is None or seat.keeps(here, now):
            continue
        for job in here:
            if job.id in pinned or seat.takes(job):
                seat.add(job)
    return {job.id for seat in seats for job in seat.jobs}


def _choose(seats: list[GpuPlace], jobs: Sequence[Job]) -> None:
    """Let each job choose the GPU with the fewest jobs among those that take it."""
    heap = [(seat.count, seat.order) for seat in seats]
    heapify(heap)
    for job in jobs:
        passed = []
        while heap:
            count, order = heappop(heap)
            if seats[order].takes(job) and seats[order].is_open_to(job):
                seats[order].add(job)
                heappush(heap, (count + 1, order))
                break
            passed.append((count, order))
        for entry in passed:
            heappush(heap, entry)


def _even_out(seats: list[GpuPlace], pinned: AbstractSet[JobId]) -> None:
    """Move jobs, the latest first, from GPUs with many jobs to GPUs with at least two fewer that take them.

    Every move makes the numbers more equal. So the moves come to an end even over several passes with different
    ``pinned`` jobs, as when attempts start that had to be left alone. If all jobs chose anew in each pass, they could
    change places forever.
    """
    takers = [(seat.count, seat.order) for seat in seats]
    heapify(takers)
    for giver in sorted(seats, key=lambda seat: -seat.count):
        passed = []
        while takers and takers[0][0] + 1 < giver.count and (last := giver.last(pinned)) is not None:
            count, order = heappop(takers)
            if seats[order].takes(last) and seats[order].is_open_to(last):
                giver.drop(last)
                seats[order].add(last)
                heappush(takers, (count + 1, order))
            else:
                passed.append((count, order))
        for entry in passed:
            heappush(takers, entry)
