"""Shares of GPUs: each job to the GPU with the fewest, each GPU divided equally among its jobs (seed 001, §IV-A).

A job that has a place keeps it, unless another GPU would have at least two fewer.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from ebbtide_core.books import Node
from ebbtide_core.job import Job
from ebbtide_core.model import WHOLE, Allocation, GpuId, GpuSlice, JobId, NodeAllocation
from ebbtide_core.placing import reads_checkpoint
from ebbtide_core.policies.draft import Draft
from ebbtide_core.policies.resizing import Why, fits_beside, on_own_gpus
from ebbtide_core.policies.seats import MOST_SHARING, size_at_most


@dataclass(slots=True)
class Seat:
    """One GPU, what of it is free, in parts and bytes, and the jobs that chose it beside ``others`` that stay."""

    node: Node
    gpu: GpuSlice
    order: int
    free: int = WHOLE
    memory: int = 0
    others: int = 0
    jobs: list[Job] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many would share it."""
        return self.others + len(self.jobs)

    def share(self, jobs: Sequence[Job]) -> int:
        """The equal share of ``jobs``: the greatest 1/n of a GPU of which there is one for each; 0 if there is none."""
        if not jobs:
            return 0
        n = -(-WHOLE * len(jobs) // self.free) if self.free else MOST_SHARING + 1
        return WHOLE // n if n <= MOST_SHARING else 0

    def takes(self, job: Job) -> bool:
        """Whether ``job`` may choose it: nobody gets less than their smallest size, and memory lasts."""
        jobs = [*self.jobs, job]
        share = self.share(jobs)
        if not share or not reads_checkpoint(job, self.node) or any(size_at_most(each, share) == 0 for each in jobs):
            return False
        return sum(self.needs(each, share) for each in jobs) <= self.memory

    def needs(self, job: Job, share: int) -> int:
        """The memory that ``job`` needs with that share, in bytes."""
        return job.spec.gpu_mem_bytes or self.gpu.mem_bytes * size_at_most(job, share) // WHOLE

    def allocations(self) -> list[tuple[Job, Allocation]]:
        """What each of its jobs gets."""
        share = self.share(self.jobs)
        return [(job, self._allocation(job, size_at_most(job, share), share)) for job in self.jobs]

    def _allocation(self, job: Job, size: int, share: int) -> Allocation:
        gpu = self.gpu if size == WHOLE else GpuSlice(self.gpu.gpu, size, self.needs(job, share))
        return Allocation((NodeAllocation(self.node.id, (gpu,), job.spec.cpus, job.spec.mem_bytes),))


def balance(draft: Draft, jobs: Sequence[Job], why: Why, now: Mapping[JobId, Allocation] | None = None) -> None:
    """Place ``jobs``, in order of arrival; what they have is lifted. ``now`` says what that is.

    Those that need whole GPUs get as many as they need, and choose first. Room for those that cannot start yet is left.
    """
    now = now or {}
    for job in jobs:
        if job.gpus_min >= WHOLE:
            kept = on_own_gpus(draft, job, now[job.id], job.gpus_min) if job.id in now else None
            _settle(draft, job, kept or draft.trial.find(job, job.gpus_min), why)
    sharing = [job for job in jobs if job.gpus_min < WHOLE]
    seats = _seats(draft)
    stay = _keep(seats, sharing, now) if now else set()
    _choose(seats, [job for job in sharing if job.id not in stay])
    if stay:
        _even_out(seats)
    chosen = {job.id: allocation for seat in seats for job, allocation in seat.allocations()}
    for job in sharing:
        allocation = chosen.get(job.id)
        fits = allocation is not None and fits_beside(draft.trial, allocation)
        _settle(draft, job, allocation if fits else None, why)


def _settle(draft: Draft, job: Job, allocation: Allocation | None, why: Why) -> None:
    if job.waiting or job.planned is not None:
        draft.settle(job, allocation, why(job))
    elif allocation is not None:
        draft.trial.take(allocation)


def _seats(draft: Draft) -> list[Seat]:
    """The GPUs of which something is free, in order."""
    trial = draft.trial
    others = Counter(_gpu_of(draft, job) for job in draft.snapshot.planned())
    ids = {id for count, nodes in trial.room.idle.items() if count for id in nodes} | trial.room.shared.keys()
    seats: list[Seat] = []
    for node in trial.nodes.values():
        use = trial.use(node.id)
        for gpu, whole in node.slices.items() if node.id in ids else ():
            free = WHOLE - use.share(gpu)
            if free:
                memory = whole.mem_bytes - use.gpu_mem.get(gpu, 0)
                seats.append(Seat(node, whole, len(seats), free, memory, others[gpu]))
    return seats


def _gpu_of(draft: Draft, job: Job) -> GpuId | None:
    """The GPU that ``job`` shares with others."""
    allocation = draft.allocation(job)
    return allocation.gpu_ids[0] if allocation is not None and 0 < allocation.share < WHOLE else None


def _keep(seats: list[Seat], jobs: Sequence[Job], now: Mapping[JobId, Allocation]) -> set[JobId]:
    """Leave jobs where they are, as far as that is possible."""
    by_gpu, kept = {seat.gpu.gpu: seat for seat in seats}, set()
    for job in jobs:
        seat = by_gpu.get(now[job.id].gpu_ids[0]) if job.id in now else None
        if seat is not None and seat.takes(job):
            seat.jobs.append(job)
            kept.add(job.id)
    return kept


def _choose(seats: list[Seat], jobs: Sequence[Job]) -> None:
    """Let each job choose the GPU with the fewest of those that take it."""
    heap = [(seat.count, seat.order) for seat in seats]
    heapify(heap)
    for job in jobs:
        passed = []
        while heap:
            count, order = heappop(heap)
            if seats[order].takes(job):
                seats[order].jobs.append(job)
                heappush(heap, (count + 1, order))
                break
            passed.append((count, order))
        for entry in passed:
            heappush(heap, entry)


def _even_out(seats: list[Seat]) -> None:
    """Move jobs, the latest first, from GPUs with many to GPUs with at least two fewer that take them.

    Every move makes the numbers more equal. So this comes to an end even if it is repeated with others of the jobs, as
    it is when attempts start that had to be left alone: choosing anew would have jobs change places forever.
    """
    fewest = min((seat.count for seat in seats), default=0)
    for giver in sorted(seats, key=lambda seat: -seat.count):
        while giver.jobs and giver.count > fewest + 1:
            fewer = sorted((seat for seat in seats if seat.count + 1 < giver.count), key=lambda seat: seat.count)
            taker = next((seat for seat in fewer if seat.takes(giver.jobs[-1])), None)
            if taker is None:
                break
            taker.jobs.append(giver.jobs.pop())
