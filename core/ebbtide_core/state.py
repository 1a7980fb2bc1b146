"""Holds the whole state of the cluster, and the few functions that change it."""

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from ebbtide_core.admission.gates import Gates
from ebbtide_core.admission.queues import Queue, by_arrival
from ebbtide_core.estimates.work import Assumptions, Script, Speedup, script_of
from ebbtide_core.job.facets import NextAttempt
from ebbtide_core.job.job import TRANSITIONS, AdmissionRecord, Attempt, InvalidTransitionError, Job, derive_state
from ebbtide_core.model import limits
from ebbtide_core.model.asha import SuccessiveHalving
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.quotas import Quotas
from ebbtide_core.model.settings import Settings
from ebbtide_core.model.types import FINISHED, WHOLE, Allocation, JobId, JobState, NodeId, Task
from ebbtide_core.resources.bookings import lead_s
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.jobs_in_the_way import JobsInTheWay
from ebbtide_core.resources.loans import rounded_need_s
from ebbtide_core.resources.pools import PoolState, SharedByPools
from ebbtide_core.resources.silent_nodes import SilentNodes
from ebbtide_core.resources.waiting_index import WaitingIndex

REFRESHED_AT_ONCE: Final = 100
"""Jobs that are refreshed at once when one event changes something for very many."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ClusterState:
    """The jobs, nodes and pools. Only the ``apply`` functions of rules change them (`ebbtide_core.rule`).

    ``queues`` are those of the pools in ``settings``, by name.
    """

    known_since = 0.0
    """Unix time; jobs that ended before it may be forgotten (see `ebbtide_core.lifecycle.forgetting`)."""
    waiting_index: WaitingIndex | None = None
    """An index of the jobs that wait for GPUs; None while there are no bookings."""
    in_the_way: JobsInTheWay | None = None
    """An index of the jobs on GPUs that others have booked; None while there are no bookings."""
    overdue = False
    """Whether an event ended delays before a pass did, so that a pass is still due."""

    def __init__(self, queues: Mapping[str, Queue], assumed: Assumptions, settings: Settings) -> None:
        self.settings = settings
        self.assumed = assumed
        self._shared = shared = SharedByPools(assumed.speedup)
        self.jobs = shared.jobs
        self.nodes = shared.nodes
        """All nodes, of all pools."""
        self.problems = shared.problems
        self.pools = {name: PoolState(name, known, queues[name], shared) for name, known in settings.pools.items()}
        """The pools by name, with those that are no longer configured and have jobs or nodes."""
        for pool in self.pools.values() if len(self.pools) > 1 else ():
            pool.where = f" in pool {pool.name}"
        self.unfinished: dict[JobId, Job] = {}
        self.submissions = 0
        self.operations, self.requests = dict[str, JobId](), dict[str, str]()
        self.speedup = assumed.speedup
        self.history = shared.history
        self.rates = shared.rates
        self.anti_affinity = shared.anti_affinity
        self.halvings: dict[JobId, SuccessiveHalving] = {}
        """The unfinished arrays under successive halving (see `ebbtide_core.lifecycle.successive_halving`)."""
        self.halvings_changed: set[JobId] = set()
        self.gates = Gates(self.jobs, settings.quotas)
        self.bookings = shared.bookings
        self.blocked_by_bookings: dict[JobId, Job] = {}
        """The jobs that only bookings of others keep from starting; they are in no queue, so they block no job."""
        self.displaced: dict[JobId, bool] = {}
        """Jobs that left a GPU because of interference and have no room yet; True keeps a job out of the queue."""
        self.foreign_gpu_s: dict[str, float] = {}
        """GPU-seconds of each user's foreign processes up to the last count (see `nodes.foreign_use`)."""
        self.unreachable, self.left_out, self._later = set[NodeId](), set[JobId](), deque[Job]()
        """Silent nodes; jobs for which a node is left out (`nodes.launch_backoff`); jobs that are refreshed later."""
        # The first jobs, with their users, that failed on a node in a row soon after they started.
        self.failing: dict[NodeId, dict[JobId, str]] = {}
        self.awaited: set[NodeId] = set()
        self.draining: set[NodeId] = set()
        """Nodes that are drained by a deadline."""
        self.unheard: set[NodeId] = set()
        """Nodes that have not reported their attempts since the journal was restored; until then nothing is placed."""
        self.leasing: set[NodeId] = set()
        """Lost nodes with attempts that end by themselves when their lease is over."""
        self.silent = SilentNodes(self.nodes)
        self.recovery_ends = 0.0
        self.quiesced, self.leaving = False, deque[tuple[Job, bool]]()  # jobs to stop for it, and whether to kill them
        self.unreadable, self.removed = dict[JobId, str](), set[JobId]()
        """Jobs whose part of the journal is damaged, and why (`unreadable_jobs`); jobs and arrays that were removed."""
        self.epoch = 0
        self.peaks: dict[Script, deque[int]] = {}
        """Peak GPU memory in bytes of the last runs of a script on one GPU at most (see `measuring.gpu_memory`)."""
        self._delayed: list[tuple[float, JobId]] = []
        self._deadlines: list[tuple[float, JobId]] = []
        self._departures: list[tuple[float, JobId]] = []

    # --- pools ---

    def pool(self, name: str) -> PoolState:
        """Return the pool with that name; create one that is not configured, in which nothing starts."""
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = PoolState(name, None, Queue(by_arrival), self._shared)
        return pool

    def pool_of(self, node: Node) -> PoolState:
        """Return the pool that ``node`` is in."""
        return self.pools[node.facts.pool]

    def refresh_node(self, node: Node) -> None:
        """Update the books after ``node`` changed: its resources, or whether it can be reached."""
        pool, roots = self.pool_of(node), self._shared.roots.changes
        pool.books.refresh(node)
        self.silent.note(node)
        if pool.books.loans and not pool.nodes_end:
            pool.nodes_end = True
            self._sort_queue_anew(pool)
        pool.changed = True
        if roots != self._shared.roots.changes:  # checkpoints can be copied from there to nodes of any pool
            self.look_again()

    def look_again(self) -> None:
        """Have the next pass ask the policy of every pool again."""
        for pool in self.pools.values():
            pool.changed = True

    # --- jobs ---

    def add_job(self, job: Job) -> None:
        """Add a new job."""
        self.pool(job.pool)
        self.jobs[job.id] = self.unfinished[job.id] = job
        self.submissions += 1

    def forget_job(self, id: JobId) -> None:
        """Forget the job, which is over and holds nothing."""
        self.left_out.discard(id)
        self.gates.forget(self.jobs.pop(id))

    def newest(self, job: JobId, attempt: int) -> Attempt | None:
        """Return the attempt with that number if it is its job's newest, else None."""
        known = self.jobs.get(job)
        if known is None or not known.attempts:
            return None
        newest = known.attempts[-1]
        return newest if newest.number == attempt else None

    def skip_id(self, id: JobId) -> None:
        """Keep the number of ``id``, a job that is not in this journal, from being given to a new job."""
        number = id.partition(".")[0]
        if number.isdecimal() and len(number) <= limits.MAX_ID_DIGITS:  # else no master gave that number
            self.submissions += max(0, int(number) + 1 - int(self.gates.next_id(self.submissions)))

    def refresh(self, job: Job, now: float) -> None:
        """Derive the job's state from its facts, and update the indexes that it belongs to.

        This runs after every event about a job, so only changes may cost time.
        """
        if job.next.pool and job.holding is None and job.end is None:
            self._change_pool(job)
        new, admission = derive_state(job, self.unreachable), job.admission
        if new is not job.state:
            self._change_state(job, new, now)
        if admission is not None:
            self._pass_gates(admission, now)
        if job.held_by is not None or job.times.held_since is not None:
            job.note_held(now)
        pool, planned = self.pools[job.pool], job.planned is not None
        pool.changed = True
        if self.in_the_way is not None:
            self._note_for_bookings(self.in_the_way, job)
        pool.note(job)
        if job.range_changed:
            _keep(pool.resizing, job, job.running and job.resizable and _out_of_range(job))
        waits = not planned and job.waiting and not (self.displaced and self.displaced.get(job.id, False))
        if self.blocked_by_bookings and job.id in self.blocked_by_bookings:
            waits = False
        if admission is not None:
            waits = waits and admission.admitted
        if waits or job.queued is not None:
            self._enqueue(pool, job, now, waits)
        if pool.ranking is not None:
            pool.ranking.update(job)

    def _note_for_bookings(self, in_the_way: JobsInTheWay, job: Job) -> None:
        """Note that ``job`` changed for the indexes that exist while there are bookings."""
        in_the_way.changed[job.id] = job
        if self.waiting_index is not None:
            self.waiting_index.changed[job.id] = job

    def _change_state(self, job: Job, new: JobState, now: float) -> None:
        if (job.state, new) not in TRANSITIONS:
            story = "\n".join(f"  {time:.3f} {event}" for time, event in job.story)
            raise InvalidTransitionError(f"job {job.id}: {job.state.value} -> {new.value}, after\n{story}")
        if job.admission is not None:
            self.gates.count(job, new)
        job.state = new
        if new in FINISHED:
            self.unfinished.pop(job.id, None)
            if self.gates.dependents:
                self._refresh_all(self.gates.ended(job), now)

    def _change_pool(self, job: Job) -> None:
        """Move ``job``, which holds nothing and is promised nothing, to the pool `NextAttempt.pool`."""
        old, new = self.pools[job.pool], self.pools[job.next.pool]
        if job.queued is not None:
            old.queue.remove(job.queued, job)
            job.queued = None
        old.forget(job)
        if old.came_back.forget(job.id):
            new.came_back.update(job)
        self.displaced.pop(job.id, None)
        # It loses its place at the head of the queue, because no job of the new pool preempted it.
        job.pool, job.next = job.next.pool, replace(job.next, pool="", at_head=False)

    def _pass_gates(self, admission: AdmissionRecord, now: float) -> None:
        """Update the gates for a job, and refresh the other jobs that this admits or gives another bound."""
        if self._delayed and self._delayed[0][0] <= now:  # jobs whose time has come were there before this one
            self.overdue = True
            self.end_delays(now)
        others, job = self.gates.update(admission, now), admission.job
        if admission.bound != job.gpus_max:
            self.leave_queue(job)  # because the queue groups jobs by their demand
            job.gpus_max, job.range_changed = admission.bound, True
        self._refresh_all(others, now)

    def _refresh_all(self, jobs: Iterable[Job], now: float) -> None:
        """Refresh the first `REFRESHED_AT_ONCE` jobs; leave the rest to `go_on`, so that no event takes too long."""
        first = iter(jobs)
        for job in islice(first, REFRESHED_AT_ONCE):
            self.refresh(job, now)
        self._later.extend(first)

    @property
    def goes_on(self) -> bool:
        """Whether something that followed from an event is still to be done."""
        bookings = self.bookings
        of_bookings = bookings and (bookings.more_to_move or bookings.more_to_block)
        return bool(self._later or self.leaving or of_bookings or (self.blocked_by_bookings and bookings.more_to_block))

    def go_on(self, now: float) -> None:
        """Refresh some of the jobs that were left for later."""
        for _ in range(min(REFRESHED_AT_ONCE, len(self._later))):
            job = self._later.popleft()
            if job.id in self.jobs:  # the job may be forgotten by now
                self.refresh(job, now)

    def change_array(self, id: JobId, max_concurrent: int, max_slots: int, now: float) -> None:
        """Give the array with that id other limits (see `ebbtide_core.admission.gates`)."""
        self._refresh_all(self.gates.change(id, max_concurrent, max_slots, now), now)

    def change_quotas(self, quotas: Quotas, now: float) -> None:
        """Use other quotas, also for jobs that are there already; jobs with room keep it (see `admission.gates`)."""
        before, gates = self.gates.quotas, self.gates
        if before == quotas:
            return
        holding = {id: self.jobs[id] for node in self.nodes.values() for id in node.attempts}
        jobs = list((self.unfinished | holding).values())
        gates.quotas, gates.limit_users = quotas, bool(quotas)
        changed = {job.id: job for job in jobs if quotas and job.admission is None}
        for job in changed.values():
            self.enter_gates(job, None)
        for user in dict.fromkeys([*gates.user_quotas, *(job.user for job in jobs)]):
            if before.of(user) != quotas.of(user):
                theirs = [job for job in jobs if job.user == user and job.admission is not None]
                gates.regroup(user, theirs)
                changed |= {job.id: job for job in theirs}
        # Jobs with room get their places in the quota before other jobs do.
        order = sorted(changed.values(), key=lambda job: (job.planned is None and job.holding is None, job.sequence))
        self._refresh_all(order, now)

    def enter_gates(self, job: Job, task: Task | None) -> None:
        """Give a new job, which some gate concerns, its admission record."""
        if task is not None:
            job.lineage = replace(job.lineage, task=task)
        self.gates.enter(job, task)
        if job.spec.begin_at:
            heapq.heappush(self._delayed, (job.spec.begin_at, job.id))

    def _enqueue(self, pool: PoolState, job: Job, now: float, waits: bool) -> None:
        """Put ``job`` into its place in the queue if it ``waits``, else take it out."""
        queue = pool.queue
        wanted = queue.order(job) if waits else None
        if wanted is not None and job.next.not_before > now:
            self.look_at(job, job.next.not_before)
            wanted = None
        if wanted == job.queued:
            return
        if job.queued is not None:
            queue.remove(job.queued, job)
        if wanted is not None:
            if pool.nodes_end or pool.books.anti_affinity is not None:
                job.next = _told_apart(pool, job)
            queue.add(wanted, job)
        job.queued = wanted

    def _sort_queue_anew(self, pool: PoolState) -> None:
        """Tell the jobs in the queue apart by what has only now begun to decide where they fit."""
        for job in list(pool.queue):
            if (key := job.queued) is not None and (told := _told_apart(pool, job)) is not job.next:
                self.leave_queue(job)
                job.next = told
                pool.queue.add(key, job)
                job.queued = key
                if pool.ranking is not None:
                    pool.ranking.update(job)
                if self.in_the_way is not None:
                    self._note_for_bookings(self.in_the_way, job)

    # --- speed ---

    def curve(self, job: Job) -> Speedup | None:
        """Return the speedup curve that was measured for the script of ``job``; None if there is none."""
        return self._shared.curve(job)

    def speed(self, attempt: Attempt) -> float:
        """Return the work that ``attempt`` does per second, by the curve that was known when it was placed."""
        return (attempt.speedup or self.speedup)(attempt.allocation.share)

    # --- anti-affinity ---

    def add_anti_affinity(self, one: Job, other: Job, until: float) -> None:
        """Keep the scripts of the two jobs off one GPU until Unix time ``until``, and wake a pass at that time."""
        self.anti_affinity.remember(one, other, until)
        for pool in self.pools.values():
            if pool.books.anti_affinity is None:
                pool.books.anti_affinity = self.anti_affinity
                self._sort_queue_anew(pool)
        self.look_at(one, until)

    @property
    def has_anti_affinity(self) -> bool:
        """Whether any two scripts must not share a GPU."""
        return any(pool.books.anti_affinity is not None for pool in self.pools.values())

    def end_anti_affinity(self, now: float) -> None:
        """Drop the anti-affinities whose time is over."""
        if not self.anti_affinity.forget(now):
            for pool in self.pools.values():
                pool.books.anti_affinity, pool.changed = None, True

    # --- room ---

    def place(self, job: Job, allocation: Allocation) -> None:
        """Give ``allocation`` to the job's new attempt, in place of what was planned before."""
        self.unplan(job)
        if self.displaced:
            self.displaced.pop(job.id, None)
        pool = self.pools[job.pool]
        pool.books.occupy(job.id, allocation)
        for id in allocation.node_ids:
            if (loan := self.nodes[id].loan) is not None:
                self.leave_by(job, loan.until - lead_s(job))
        job.planned = allocation
        pool.planned[job.id] = job

    def vacate(self, job: Job) -> None:
        """Free the room of the newest attempt, which is proven over, and its plan if it ended without a request."""
        attempt, pool = job.attempts[-1], self.pools[job.pool]
        if attempt.stop is None and attempt.end is None:
            pool.books.vacate(job.id, attempt.allocation)
            job.planned = None
            del pool.planned[job.id]
        else:
            pool.books.free(job.id, attempt.allocation)
        if pool.claims:  # only claims read freed_nodes
            pool.freed_nodes.update(attempt.allocation.node_ids)

    def promise(self, job: Job, allocation: Allocation) -> None:
        """Keep ``allocation`` for the job, in place of what was planned before."""
        pool = self.pools[job.pool]
        if job.planned is not None:
            _release(pool, job.id, job.planned)
        pool.books.promise(job.id, allocation)
        job.planned = allocation
        pool.planned[job.id] = pool.claims[job.id] = job

    def unplan(self, job: Job) -> None:
        """Release the room that is planned for the job, if there is any."""
        if job.planned is not None:
            pool = self.pools[job.pool]
            _release(pool, job.id, job.planned)
            job.planned = None
            del pool.planned[job.id]
            pool.claims.pop(job.id, None)

    def jobs_on_gpus(self, node: Node) -> list[Job]:
        """Return the jobs that hold GPUs of ``node``; they are few, even where very many hold only CPUs."""
        return [self.jobs[id] for id in sorted(node.on_gpus)]

    def jobs_on(self, node: Node) -> list[Job]:
        """Return the jobs with an attempt on ``node`` that is not proven over."""
        return [self.jobs[id] for id in sorted(node.attempts)]

    # --- times ---

    def set_deadline(self, job: Job, time: float) -> None:
        """Have a pass check the limits of ``job`` at Unix time ``time`` if it runs then."""
        heapq.heappush(self._deadlines, (time, job.id))

    def leave_by(self, job: Job, time: float) -> None:
        """Have a pass ask ``job`` at Unix time ``time`` to leave its node, which ends (see `nodes.loan_ends`)."""
        heapq.heappush(self._departures, (time, job.id))

    def note_departures(self, node: Node) -> None:
        """Have a pass ask each job on ``node`` to leave in time, if the node ends."""
        if node.loan is not None:
            for job in self.jobs_on(node):
                self.leave_by(job, node.loan.until - lead_s(job))

    def next_to_leave(self, now: float) -> Job | None:
        """Return the next job whose time to leave its node has come, and forget that time; None if there is none."""
        while self._departures and self._departures[0][0] <= now:
            if (job := self.jobs.get(heapq.heappop(self._departures)[1])) is not None:
                return job
        return None

    def look_at(self, job: Job, time: float) -> None:
        """Have a pass refresh ``job`` at Unix time ``time``."""
        heapq.heappush(self._delayed, (time, job.id))

    def leave_queue(self, job: Job) -> None:
        """Take ``job`` out of the queue, so that its demand may change; `refresh` puts it back."""
        if job.queued is not None:
            pool = self.pools[job.pool]
            pool.queue.remove(job.queued, job)
            job.queued = None
            if pool.ranking is not None:
                pool.ranking.update(job)

    def is_due(self, now: float) -> bool:
        """Return whether the time of a delay, a deadline, a departure or the recovery has come."""
        time = self.next_time()
        return self.overdue or (time is not None and time <= now)

    def due_deadlines(self, now: float, most: int) -> list[Job]:
        """Return running jobs with a deadline that has come, also those on silent nodes; return each once.

        ``most`` deadlines are looked at; `has_due_deadlines` says whether more have come.
        """
        due: list[Job | None] = []
        while self.has_due_deadlines(now) and len(due) < most:
            due.append(self.jobs.get(heapq.heappop(self._deadlines)[1]))
        return [job for job in due if job is not None and job.running]

    def has_due_deadlines(self, now: float) -> bool:
        """Return whether a deadline has come that `due_deadlines` has not looked at yet."""
        return bool(self._deadlines) and self._deadlines[0][0] <= now

    def end_delays(self, now: float) -> None:
        """Refresh the jobs whose back-off is over or whose begin time has come, in order of submission.

        Nodes that were left out for them until now are open to them again.
        """
        due = []
        while self._delayed and self._delayed[0][0] <= now:
            due.append(self.jobs.get(heapq.heappop(self._delayed)[1]))
        for id in {job.id for job in due if job is not None} & self.left_out:
            for node, until in list(self.jobs[id].eligibility.left_out_until.items()):
                if until <= now:
                    self.admit(self.jobs[id], node)
        self._refresh_all(sorted((job for job in due if job is not None), key=_sequence), now)

    def admit(self, job: Job, node: NodeId) -> None:
        """Open a left-out node to ``job`` again; after one more failed launch there it is left out again."""
        self.leave_queue(job)
        job.eligibility = job.eligibility.again_with(node)
        job.retries = job.retries.with_launches(node, limits.MAX_LAUNCHES_IN_VAIN - 1)
        if not job.eligibility.left_out_until:
            self.left_out.discard(job.id)

    def forget_due(self, now: float) -> None:
        """Forget what waits for a pass up to Unix time ``now``; call this in a fold in which no pass ever comes."""
        for heap in (self._delayed, self._deadlines, self._departures):
            while heap and heap[0][0] <= now:
                heapq.heappop(heap)
        self._later.clear()
        self.halvings_changed.clear()

    def next_time(self) -> float | None:
        """Return the Unix time of the next delay, deadline, departure or end of recovery; None if there is none."""
        if not (self._delayed or self._deadlines or self._departures or self.awaited):
            return None
        times = [heap[0][0] for heap in (self._delayed, self._deadlines, self._departures) if heap]
        if self.awaited:
            times.append(self.recovery_ends)
        return min(times, default=None)


def _release(pool: PoolState, job: JobId, planned: Allocation) -> None:
    pool.books.release(job, planned)
    pool.freed_nodes.update(planned.node_ids)


def _keep(index: dict[JobId, Job], job: Job, wanted: bool) -> None:
    if wanted:
        index[job.id] = job
    else:
        index.pop(job.id, None)


def _told_apart(pool: PoolState, job: Job) -> NextAttempt:
    """Return ``job.next`` with what decides where the job fits beside its request, if anything of that kind does."""
    need_s = rounded_need_s(job) if pool.nodes_end else 0.0
    script = script_of(job) if pool.books.anti_affinity is not None and 0 < job.gpus_min < WHOLE else None
    if (need_s, script) == (job.next.need_s, job.next.script):
        return job.next
    return replace(job.next, need_s=need_s, script=script)


def _out_of_range(job: Job) -> bool:
    return not job.gpus_min <= job.attempts[-1].allocation.share <= job.gpus_max


def _sequence(job: Job) -> int:
    return job.sequence
