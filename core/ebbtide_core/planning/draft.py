"""The draft of a plan, with the steps that all policies share."""

from collections.abc import Callable, Sequence

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, JobId, NodeId, gpus
from ebbtide_core.planning.staying import spared_until
from ebbtide_core.resources.anti_affinity import kept_from
from ebbtide_core.resources.books import Books
from ebbtide_core.resources.checkpoint_location import nodes_reading_checkpoint, nodes_with_checkpoint
from ebbtide_core.resources.eligibility import could_combine, could_spread, obstacle
from ebbtide_core.resources.foreign_processes import on_gpu, users_text
from ebbtide_core.resources.placing import NodeRank, Trial
from ebbtide_core.snapshot import Eviction, Placement, Plan, Snapshot

NODES_NAMED = 4
"""The most nodes of one allocation that a reason lists."""
JOBS_NAMED = 4
"""The most jobs that a reason lists."""
CROWDED_OUT = "no room is left beside the jobs that came earlier"
"""Why a job is suspended that no single other job replaces."""


def smallest_size(job: Job) -> int:
    """Return the smallest size of ``job``, in parts of GPUs."""
    return job.gpus_min


class Draft:
    """A trial allocation over the snapshot, and the placements and evictions that lead to it.

    ``least`` returns the size at which a job starts, and below which it does not shrink for another.
    """

    def __init__(self, snapshot: Snapshot, least: Callable[[Job], int] = smallest_size) -> None:
        self.snapshot = snapshot
        self.least = least
        self.trial = Trial(snapshot.books)
        self.placements: dict[JobId, Placement] = {}
        self.evictions: dict[JobId, Eviction] = {}
        self.lifted: set[JobId] = set()
        self.waits: dict[JobId, str] = {}
        self.holds: dict[JobId, str] = {}
        self.recheck_at: float | None = None
        self.sparing: dict[JobId, Job] = {}
        """The jobs that were spared when the job that is now considered asked for their room."""
        self.may_have_room: Callable[[Job, Sequence[Job]], bool] | None = None
        """Whether rules other than free room (such as slots) let a job start once the given victims have left.

        None means that there are no such rules.
        """

    def plan(self) -> Plan:
        """Return the plan that the draft amounts to."""
        return Plan(self.placements, self.evictions, self.waits, self.holds, self.recheck_at)

    def recheck(self, time: float) -> None:
        """Request another pass at ``time`` (Unix seconds) at the latest."""
        self.recheck_at = time if self.recheck_at is None else min(time, self.recheck_at)

    def allocation(self, job: Job) -> Allocation | None:
        """Return where ``job`` would run by this draft; None if it would not."""
        if job.id in self.evictions:
            return None
        placement = self.placements.get(job.id)
        if placement is not None:
            return placement.allocation
        return None if job.id in self.lifted else job.planned

    def lift(self, job: Job) -> None:
        """Free what ``job`` has in the trial, so that `settle` can place it anew after other jobs."""
        if job.planned is not None:
            self.trial.give(job.planned)
            self.lifted.add(job.id)

    def settle(self, job: Job, allocation: Allocation | None, reason: str) -> None:
        """Place a waiting or lifted ``job`` on ``allocation``, or let it wait (None); its present room is no change."""
        if allocation is not None and allocation == job.planned:
            self.trial.take(allocation)
            self.lifted.discard(job.id)
        elif allocation is not None:
            self.place(job, allocation, reason, claim=True)
        elif job.planned is not None:
            self.evict(job, CROWDED_OUT, None)
        else:
            self.wait(job)

    def place(
        self, job: Job, allocation: Allocation, reason: str, claim: bool = False, *, sticky: bool = False
    ) -> None:
        """Place ``job`` on ``allocation`` instead of where it would have run before."""
        before = self.allocation(job)
        if before is not None:
            self.trial.give(before)
        self.trial.take(allocation)
        self.sparing.clear()
        self.placements[job.id] = Placement(allocation, reason, claim, sticky)

    def evict(self, job: Job, reason: str, for_job: JobId | None) -> None:
        """Take ``job`` off its room; ``for_job`` is the job that gets it, if a single one does."""
        before = self.allocation(job)
        if before is not None:
            self.trial.give(before)
        self.placements.pop(job.id, None)
        self.evictions[job.id] = Eviction(reason, for_job)

    def hold(self, job: Job, reason: str) -> None:
        """Hold ``job``, so that it does not start again until a user releases it."""
        self.holds[job.id] = reason

    def spared(self, job: Job, min_run_s: float) -> bool:
        """Return whether ``job`` resumed too recently to be preempted; if so, request a pass for when that ends."""
        until = spared_until(job, min_run_s)
        if until is None or until <= self.snapshot.now:
            return False
        self.recheck(until)
        self.sparing[job.id] = job
        return True

    def admit(self, job: Job, rank: NodeRank | None = None) -> bool:
        """Place ``job`` at its `least` size, on nodes of the lowest ``rank``; return False if there is no room."""
        allocation = self.trial.find(job, self.least(job), rank=rank)
        if allocation is None:
            return False
        self.place(job, allocation, "starting")
        return True

    def planned_on(self, node: NodeId) -> list[Job]:
        """Return the jobs that would run on ``node``."""
        here = {job.id: job for job in self.snapshot.planned_on(node) if job.id not in self.evictions}
        for id, placement in self.placements.items():
            if node in placement.allocation.node_ids:
                here[id] = self.snapshot.job(id)
        return list(here.values())

    def elastic(self) -> list[Job]:
        """Return the elastic jobs that would run."""
        planned = {job.id: job for job in self.snapshot.elastic() if job.id not in self.evictions}
        return list((planned | self.placed_elastic()).values())

    def placed_elastic(self) -> dict[JobId, Job]:
        """Return the elastic jobs of the draft's placements."""
        return {id: job for id in self.placements if (job := self.snapshot.job(id)).elastic}

    def has_elastic(self) -> bool:
        """Return whether any elastic job would run."""
        return any(id not in self.evictions for id in self.snapshot.elastic_jobs.jobs) or bool(self.placed_elastic())

    def wait(self, job: Job, share: int | None = None) -> None:
        """Record why ``job`` waits for ``share`` parts of GPUs; the default is its `least` size."""
        need = (
            "GPU" if job.pinned_allocation is not None else need_text(job, self.least(job) if share is None else share)
        )
        if job.gpu_memory.requested_bytes and job.pinned_allocation is None:
            need += f" with {job.gpu_memory.requested_bytes / 2**30:.3g} GiB"
        self.waits[job.id] = f"waiting for {need}{self.snapshot.where}{self._obstacle(job) or self._spared_for(job)}"
        self.sparing.clear()

    def _obstacle(self, job: Job) -> str:
        """Return in words what keeps ``job`` from starting apart from a lack of free GPUs; empty if nothing does."""
        books = self.snapshot.books
        if (own := job.pinned_allocation) is not None:
            node = books.nodes[own.node_ids[0]]
            users = on_gpu(node, own.gpu_ids[0])
            used = f", used by {users_text(users)}" if users else ""
            used += ", which is being drained" if node.drain is not None else ""
            used += "" if node.reachable else ", which is not connected"
            return f" {own.gpu_ids[0]} of node {node.id}, the one that it was swapped out from{used}"
        if not books.usable:
            drained = any(node.reachable for node in books.nodes.values())
            return ": every connected node is being drained" if drained else ": no node is connected"
        if others := kept_from(job, books):
            return f", kept apart from {others}"
        if books.booked is not None and job.gpus_min and (booked := books.booked.obstacle(job)):
            return f": {booked}"
        if (job.eligibility.constrained or books.heterogeneous) and (why := obstacle(job, books)):
            return why
        if job.spec.most_nodes == 1 and job.gpus_min > (biggest := books.largest) * WHOLE:
            return f" on one node: the connected ones have {biggest} at most"
        if job.saved.root_id and (pinned := self._pinned(job)):
            return pinned
        if job.spec.spread and not could_combine(job, books):
            return ": the connected nodes that share a checkpoint root do not have so many"
        if job.spec.nodes > 1 and not could_spread(job, books):
            return f": no {job.spec.nodes} of the connected nodes have them and share a checkpoint root"
        return _foreign(books) if books.foreign and job.gpus_min else ""

    def _spared_for(self, job: Job) -> str:
        """Return in words which spared jobs keep ``job`` from having room; empty if they do not."""
        if not self.sparing or job.pinned_allocation is not None:
            return ""
        given = [room for other in self.sparing.values() if (room := self.allocation(other)) is not None]
        for room in given:
            self.trial.give(room)
        found = self.trial.find(job, self.least(job))
        for room in given:
            self.trial.take(room)
        if found is None:
            return ""
        there = set[str](found.gpu_ids or found.node_ids)
        spared = [id for id, other in self.sparing.items() if (room := self.allocation(other)) and _has_of(room, there)]
        if not spared:
            return ""
        verb = "is" if len(spared) == 1 else "are"
        return f": {jobs_text(spared)}, resumed lately, {verb} spared for now (min_run_s)"

    def _pinned(self, job: Job) -> str:
        """Return in words which nodes can read the checkpoint of ``job``; empty if all can."""
        books = self.snapshot.books
        reaching = nodes_reading_checkpoint(job, books)
        if len(reaching) == len(books.usable):
            return ""
        if not reaching:
            away = ", ".join(node.id for node in nodes_with_checkpoint(job, books.everywhere))
            return f": its checkpoint is on node {away}, not connected" if away else ": no node has its checkpoint"
        failure = f" ({job.saved.move_failure})" if job.saved.move_failure else ""
        return f" of node {', '.join(reaching)}, where its checkpoint is{failure}"


def _has_of(room: Allocation, wanted: set[str]) -> bool:
    """Return whether ``room`` includes one of the ``wanted`` GPUs or nodes."""
    return any(id in wanted for id in (*room.gpu_ids, *room.node_ids))


def _foreign(books: Books) -> str:
    """Return in words which GPUs foreign processes use: the first one, and how many more."""
    used = [(node, gpu) for node in books.foreign.values() for gpu in node.foreign]
    node, gpu = used[0]
    more = f", and {len(used) - 1} more by others" if len(used) > 1 else ""
    return f": GPU {node.gpus[gpu].index} of node {node.id} is used by {users_text(on_gpu(node, gpu))}{more}"


def need_text(job: Job, share: int) -> str:
    """Return in words what ``job`` needs to have ``share`` parts of GPUs, such as ``2 GPUs on 2 nodes``."""
    spec = job.spec
    if spec.spread and share > WHOLE:
        return f"{count_text(share)} on {spec.max_nodes} nodes or fewer"
    return count_text(share) if spec.nodes == 1 else f"{count_text(share)} on {spec.nodes} nodes"


def jobs_text(jobs: Sequence[JobId]) -> str:
    """Return one or more jobs in words, as in "jobs 3, 4 and 7": of many the first, and how many more."""
    *others, last = [*jobs[:JOBS_NAMED], f"{len(jobs) - JOBS_NAMED} more"] if len(jobs) > JOBS_NAMED else jobs
    return f"jobs {', '.join(others)} and {last}" if others else f"job {last}"


def count_text(share: int) -> str:
    """Return a GPU count in words: ``2 GPUs``, ``1/4 GPU``, ``CPUs only``."""
    if share == 0:
        return "CPUs only"
    if share % WHOLE == 0:
        return f"{share // WHOLE} GPU{'s' if share > WHOLE else ''}"
    return f"{gpus(share)} GPU{'s' if share > WHOLE else ''}"


def count_range(low: int, high: int) -> str:
    """Return a range of GPU counts in words."""
    return count_text(low) if low == high else f"{count_text(low)} to {count_text(high)}"


def where(allocation: Allocation) -> str:
    """Return an allocation in words: ``2 GPUs of node a``."""
    nodes = allocation.node_ids
    more = f" and {len(nodes) - NODES_NAMED} more" if len(nodes) > NODES_NAMED else ""
    return f"{count_text(allocation.share)} of node {', '.join(nodes[:NODES_NAMED])}{more}"
