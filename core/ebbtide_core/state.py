"""All of the cluster's state, and the few ways in which it changes."""

import heapq
from collections import deque
from typing import Protocol

from ebbtide_core.apart import Pairs
from ebbtide_core.bookings import Bookings
from ebbtide_core.books import Books, Node
from ebbtide_core.curves import Rates
from ebbtide_core.job import TRANSITIONS, Attempt, InvalidTransitionError, Job, derive_state
from ebbtide_core.model import FINISHED, Allocation, JobId, NodeId
from ebbtide_core.queues import Queue
from ebbtide_core.settings import Settings
from ebbtide_core.work import History, Script, Speedup, script_of


class Ranking(Protocol):
    """An index of its own that a policy wants kept up to date between its passes."""

    def update(self, job: Job) -> None:
        """``job`` changed; called after every event about it. Must be cheap, and idempotent."""
        ...


class ClusterState:
    """Jobs, nodes and the queue; changed only by `ebbtide_core.fold`.

    With ``trusting``, every job counts as one that has proved that it can suspend.
    """

    def __init__(self, queue: Queue, speedup: Speedup, settings: Settings, *, trusting: bool = False) -> None:
        self.settings = settings
        self.trusting = trusting
        self.jobs: dict[JobId, Job] = {}
        self.unfinished: dict[JobId, Job] = {}
        self.submissions = 0
        self.operations: dict[str, JobId] = {}
        self.books = Books()
        self.queue = queue
        self.ranking: Ranking | None = None
        self.speedup = speedup
        self.history = History()
        self.rates = Rates()
        self.apart = Pairs(self.jobs)
        self.aside: dict[JobId, bool] = {}
        """Those who left a GPU because of others and have no other yet; whether they are kept out of the queue."""
        self.planned: dict[JobId, Job] = {}
        """Those with room promised to them."""
        self.claims: dict[JobId, Job] = {}
        """Those of them for whom it is kept until an attempt can start there."""
        self.came_back: dict[JobId, Job] = {}
        """The unfinished jobs of which it was measured what a restart costs them."""
        self.resizing: dict[JobId, Job] = {}
        self.elastic: dict[JobId, Job] = {}
        self.bookings = Bookings()
        self.shut_out: dict[JobId, Job] = {}
        """Those who wait for nothing but bookings of others; they stand in no line, so that they hold up nobody."""
        self.foreign_gpu_s: dict[str, float] = {}
        """What users have had of GPUs past the cluster, as far as it is counted; see `ebbtide_core.foreign`."""
        self.unreachable: set[NodeId] = set()
        self.awaited: set[NodeId] = set()
        self.recovery_ends = 0.0
        self.quiesced = False
        self.epoch = 0
        self.roomier: set[NodeId] = set()
        """Nodes where something was freed, or given up, since claims were last looked at."""
        self.peaks: dict[Script, deque[int]] = {}
        """Bytes that runs of a script used of a GPU of which they had no more than one (see `ebbtide_core.memory`)."""
        self._delayed: list[tuple[float, JobId]] = []
        self._deadlines: list[tuple[float, JobId]] = []

    # --- jobs ---

    def add_job(self, job: Job) -> None:
        """Take in a new job."""
        self.jobs[job.id] = self.unfinished[job.id] = job
        self.submissions += 1

    def refresh(self, job: Job, now: float) -> None:
        """Derive what follows from a job's facts: its state, and in which indexes it is.

        Called after every event about it, so only changes may cost.
        """
        new = derive_state(job, self.unreachable)
        if new is not job.state:
            if (job.state, new) not in TRANSITIONS:
                story = "\n".join(f"  {time:.3f} {event}" for time, event in job.story)
                raise InvalidTransitionError(f"job {job.id}: {job.state.value} -> {new.value}, after\n{story}")
            job.state = new
            if new in FINISHED:
                self.unfinished.pop(job.id, None)
        planned = job.planned is not None
        if job.gpus_max != job.gpus_min or job.id in self.elastic:
            _keep(self.elastic, job, job.elastic and planned and job.held_by is None)
        if job.range_changed:
            _keep(self.resizing, job, job.running and job.held_by is None and _out_of_range(job))
        waits = not planned and job.waiting and not (self.aside and self.aside.get(job.id, False))
        if self.shut_out and job.id in self.shut_out:
            waits = False
        if waits or job.queued is not None:
            self._enqueue(job, now, waits)
        if self.ranking is not None:
            self.ranking.update(job)

    def _enqueue(self, job: Job, now: float, waits: bool) -> None:
        """Have ``job`` in the queue where it belongs, or not at all."""
        wanted = self.queue.order(job) if waits else None
        if wanted is not None and job.not_before > now:
            heapq.heappush(self._delayed, (job.not_before, job.id))
            wanted = None
        if wanted == job.queued:
            return
        if job.queued is not None:
            self.queue.remove(job.queued, job)
        if wanted is not None:
            self.queue.add(wanted, job)
        job.queued = wanted

    # --- speed ---

    def curve(self, job: Job) -> Speedup | None:
        """The curve that was measured of the script of ``job``; None if there is none."""
        if not self.rates.curves or (script := script_of(job)) is None:
            return None
        return self.rates.curves.get(script)

    def speed(self, attempt: Attempt) -> float:
        """The work that ``attempt`` does per second, by what was known when it was placed."""
        return (attempt.speedup or self.speedup)(attempt.allocation.share)

    # --- who is kept apart ---

    def keep_apart(self, one: Job, other: Job, until: float) -> None:
        """Do not put the scripts of the two on one GPU until then; look at all again at that time."""
        self.apart.remember(one, other, until)
        self.books.apart = self.apart
        heapq.heappush(self._delayed, (until, one.id))

    def end_apartness(self, now: float) -> None:
        """Let those be together again whose time is up."""
        if not self.apart.forget(now):
            self.books.apart = None

    # --- room ---

    def place(self, job: Job, allocation: Allocation) -> None:
        """The job gets an attempt on ``allocation``, instead of what was planned before."""
        self.unplan(job)
        if self.aside:
            self.aside.pop(job.id, None)
        self.books.occupy(job.id, allocation)
        job.planned = allocation
        self.planned[job.id] = job

    def vacate(self, job: Job) -> None:
        """The newest attempt of the job is proven over; if nobody asked for that, it gives up its room only now."""
        attempt = job.attempts[-1]
        if attempt.stop is None and attempt.exited is None:
            self.books.vacate(job.id, attempt.allocation)
            job.planned = None
            del self.planned[job.id]
        else:
            self.books.free(job.id, attempt.allocation)
        if self.claims:  # nobody else asks
            self.roomier.update(attempt.allocation.node_ids)

    def promise(self, job: Job, allocation: Allocation) -> None:
        """Keep ``allocation`` for the job, instead of what was planned before."""
        if job.planned is not None:
            self._release(job.id, job.planned)
        self.books.promise(job.id, allocation)
        job.planned = allocation
        self.planned[job.id] = self.claims[job.id] = job

    def unplan(self, job: Job) -> None:
        """Plan nothing for the job any more."""
        if job.planned is not None:
            self._release(job.id, job.planned)
            job.planned = None
            del self.planned[job.id]
            self.claims.pop(job.id, None)

    def _release(self, job: JobId, planned: Allocation) -> None:
        self.books.release(job, planned)
        self.roomier.update(planned.node_ids)

    def jobs_on(self, node: Node) -> list[Job]:
        """The jobs with an attempt on ``node`` that is not proven over."""
        return [self.jobs[id] for id in sorted(node.attempts)]

    # --- times ---

    def set_deadline(self, job: Job, time: float) -> None:
        """Remember that the job's time limit ends at ``time`` if it runs on."""
        heapq.heappush(self._deadlines, (time, job.id))

    def is_due(self, now: float) -> bool:
        """Whether something is due by itself."""
        time = self.next_time()
        return time is not None and time <= now

    def due_deadlines(self, now: float) -> list[Job]:
        """The jobs whose time limit may have ended, on silent nodes, too; asked for once each."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            due.append(self.jobs.get(heapq.heappop(self._deadlines)[1]))
        return [job for job in due if job is not None and job.running]

    def end_delays(self, now: float) -> None:
        """Let the jobs whose back-off is over stand in the queue again."""
        while self._delayed and self._delayed[0][0] <= now:
            job = self.jobs.get(heapq.heappop(self._delayed)[1])
            if job is not None:
                self.refresh(job, now)

    def next_time(self) -> float | None:
        """When something is due next by itself."""
        if not (self._delayed or self._deadlines or self.awaited):
            return None
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
