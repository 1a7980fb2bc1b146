"""All of the cluster's state, and the few ways in which it changes."""

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from ebbtide_core.admission.gates import Gates
from ebbtide_core.admission.queues import Queue, by_arrival
from ebbtide_core.estimates.work import Script, Speedup
from ebbtide_core.job.job import TRANSITIONS, AdmissionRecord, Attempt, InvalidTransitionError, Job, derive_state
from ebbtide_core.model import limits
from ebbtide_core.model.asha import SuccessiveHalving
from ebbtide_core.model.quotas import Quotas
from ebbtide_core.model.settings import Settings
from ebbtide_core.model.spec import JobSpec, text_size
from ebbtide_core.model.types import FINISHED, Allocation, JobId, JobState, NodeId, Task
from ebbtide_core.resources.booking_lines import BookingLines
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.pools import Common, PoolState

REFRESHED_AT_ONCE: Final = 100
"""Jobs that something follows for, of one event."""


class ClusterState:
    """Jobs, nodes and pools; changed only by what rules apply (`ebbtide_core.rule`).

    With ``trusting``, every job counts as one that has proved that it can suspend. ``queues`` are those of the pools
    of ``settings``.
    """

    known_since = 0.0
    """Jobs that had ended before that Unix time may be forgotten (see `ebbtide_core.lifecycle.forgetting`)."""
    valid: JobSpec | None = None
    """The spec that was found valid last: the tasks of an array have the same."""
    booking_lines: BookingLines | None = None
    """The jobs that wait for GPUs, as long as there are bookings."""
    overdue = False
    """Whether a time has come of which no pass knows yet: what is due with it is still to be done."""

    def __init__(
        self, queues: Mapping[str, Queue], speedup: Speedup, settings: Settings, *, trusting: bool = False
    ) -> None:
        self.settings = settings
        self.trusting = trusting
        self._common = common = Common(speedup)
        self.jobs = common.jobs
        self.nodes = common.nodes
        """All of them, of whatever pool."""
        self.problems = common.problems
        self.pools = {name: PoolState(name, known, queues[name], common) for name, known in settings.pools.items()}
        """By name; those that jobs or nodes are in though they are configured no more, too."""
        for pool in self.pools.values() if len(self.pools) > 1 else ():
            pool.where = f" in pool {pool.name}"
        self.unfinished: dict[JobId, Job] = {}
        self.submissions, self.text_bytes = 0, Counter[str]()  # these are of commands and scripts, by user
        self.operations, self.requests = dict[str, JobId](), dict[str, str]()
        self.speedup = speedup
        self.history = common.history
        self.rates = common.rates
        self.anti_affinity = common.anti_affinity
        self.curve = common.curve
        self.halvings: dict[JobId, SuccessiveHalving] = {}
        """The arrays under successive halving that are not over (see `ebbtide_core.lifecycle.successive_halving`)."""
        self.halvings_changed: set[JobId] = set()
        self.gates = Gates(self.jobs, settings.quotas)
        self.bookings = common.bookings
        self.shut_out: dict[JobId, Job] = {}
        """Those who wait for nothing but bookings of others; they stand in no line, so that they hold up nobody."""
        self.aside: dict[JobId, bool] = {}
        """Those who left a GPU because of others and have no other yet; whether they are kept out of the queue."""
        self.foreign_gpu_s: dict[str, float] = {}
        """What users have had of GPUs past the cluster, as far as it is counted; see `nodes.foreign_use`."""
        self.unreachable, self.left_out, self._later = set[NodeId](), set[JobId](), deque[Job]()
        """Nodes that are silent; jobs for which one is left out (`nodes.launch_backoff`); who is refreshed later."""
        self.failing: dict[NodeId, dict[JobId, str]] = {}  # who failed there at once, in a row, and whose it is
        self.awaited: set[NodeId] = set()
        self.draining: set[NodeId] = set()
        """Nodes that are to be empty at a time."""
        self.unheard: set[NodeId] = set()
        """Nodes that have not said what they have since the journal was restored: until then nothing is placed."""
        self.leasing: set[NodeId] = set()
        """Lost nodes with attempts that end themselves."""
        self.doubted: frozenset[NodeId] = frozenset()
        """Nodes whose silence may be the master's fault (see `ebbtide_core.nodes.silence`)."""
        self.recovery_ends = 0.0
        self.quiesced, self.leaving = False, deque[tuple[Job, bool]]()  # who is to be asked to leave because of that
        self.set_aside, self.removed = dict[JobId, str](), set[JobId]()
        """Those of which the journal is damaged, and how (`unreadable_jobs`); jobs and arrays that were removed."""
        self.epoch = 0
        self.peaks: dict[Script, deque[int]] = {}
        """Bytes that runs of a script used of a GPU of which they had no more than one (see `measuring.gpu_memory`)."""
        self._delayed: list[tuple[float, JobId]] = []
        self._deadlines: list[tuple[float, JobId]] = []

    # --- pools ---

    def pool(self, name: str) -> PoolState:
        """The pool of that name; one that is not configured is made to be there, and starts nothing."""
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = PoolState(name, None, Queue(by_arrival), self._common)
        return pool

    def pool_of(self, node: Node) -> PoolState:
        """The pool that ``node`` is in."""
        return self.pools[node.facts.pool]

    def refresh_node(self, node: Node) -> None:
        """Take note of a change in what ``node`` has, or in whether it can be reached."""
        pool, roots = self.pool_of(node), set(self._common.roots)
        pool.books.refresh(node)
        pool.changed = True
        if roots != self._common.roots:  # checkpoints can be copied from there to nodes of any pool
            self.look_again()

    def look_again(self) -> None:
        """Have every policy asked again."""
        for pool in self.pools.values():
            pool.changed = True

    # --- jobs ---

    def add_job(self, job: Job) -> None:
        """Take in a new job."""
        self.pool(job.pool)
        self.jobs[job.id] = self.unfinished[job.id] = job
        self.submissions += 1
        self.text_bytes[job.user] += text_size(job.spec)

    def forget_job(self, id: JobId) -> None:
        """Know the job, which is over and holds nothing, no more."""
        job = self.jobs.pop(id)
        self.text_bytes[job.user] -= text_size(job.spec)
        self.left_out.discard(id)
        self.gates.forget(job)

    def newest(self, job: JobId, attempt: int) -> Attempt | None:
        """The attempt of that number, if it is its job's newest."""
        known = self.jobs.get(job)
        if known is None or not known.attempts:
            return None
        newest = known.attempts[-1]
        return newest if newest.number == attempt else None

    def skip_id(self, id: JobId) -> None:
        """See to it that no new job gets the number of a job that is not in this journal."""
        number = id.partition(".")[0]
        if number.isdecimal() and len(number) <= limits.MAX_ID_DIGITS:  # else nobody gave that number
            self.submissions += max(0, int(number) + 1 - int(self.gates.next_id(self.submissions)))

    def refresh(self, job: Job, now: float) -> None:
        """Derive what follows from a job's facts: its state, and in which indexes it is.

        Called after every event about it, so only changes may cost.
        """
        if job.moves_to and job.holding is None and job.ending is None:
            self._change_pool(job)
        new, admission = derive_state(job, self.unreachable), job.admission
        if new is not job.state:
            self._change_state(job, new, now)
        if admission is not None:
            self._pass_gates(admission, now)
        if job.held_by is not None or job.held_since is not None:
            job.note_held(now)
        pool, planned = self.pools[job.pool], job.planned is not None
        pool.changed = True
        if self.booking_lines is not None:
            self.booking_lines.changed[job.id] = job
        if job.gpus_max != job.gpus_min or job.id in pool.elastic:
            _keep(pool.elastic, job, job.elastic and planned and job.held_by is None)
        if job.range_changed:
            _keep(pool.resizing, job, job.running and job.held_by is None and _out_of_range(job))
        waits = not planned and job.waiting and not (self.aside and self.aside.get(job.id, False))
        if self.shut_out and job.id in self.shut_out:
            waits = False
        if admission is not None:
            waits = waits and admission.admitted
        if waits or job.queued is not None:
            self._enqueue(pool.queue, job, now, waits)
        if pool.ranking is not None:
            pool.ranking.update(job)

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
        """Have ``job``, which holds nothing and is promised nothing, in the pool where it is to go."""
        old, new = self.pools[job.pool], self.pools[job.moves_to]
        if job.queued is not None:
            old.queue.remove(job.queued, job)
            job.queued = None
        old.forget(job)
        if old.came_back.pop(job.id, None) is not None:
            new.came_back[job.id] = job
        self.aside.pop(job.id, None)
        # It comes last of its like there: it was not preempted by anybody of that pool.
        job.pool, job.moves_to, job.returns = job.moves_to, "", False

    def _pass_gates(self, admission: AdmissionRecord, now: float) -> None:
        """Have the job at the gates where it belongs, and the others who get past them by that in the queue."""
        if self._delayed and self._delayed[0][0] <= now:  # whose time has come was there before
            self.overdue = True
            self.end_delays(now)
        others, job = self.gates.update(admission, now), admission.job
        if admission.bound != job.gpus_max:
            self.leave_queue(job)  # the queue groups by what is needed
            job.gpus_max, job.range_changed = admission.bound, True
            if job.claiming and job.planned is not None and job.planned.share > admission.bound:
                self.unplan(job)
        self._refresh_all(others, now)

    def _refresh_all(self, jobs: Iterable[Job], now: float) -> None:
        """Of very many, those behind the first follow later (`go_on`): no event takes longer than others may wait."""
        first = iter(jobs)
        for job in islice(first, REFRESHED_AT_ONCE):
            self.refresh(job, now)
        self._later.extend(first)

    @property
    def goes_on(self) -> bool:
        """Whether there is more to do of what followed from an event."""
        bookings = self.bookings
        of_bookings = bookings and (bookings.more_to_move or bookings.more_to_line_up)
        return bool(self._later or self.leaving or of_bookings or (self.shut_out and bookings.more_to_line_up))

    def go_on(self, now: float) -> None:
        """Do some of what is left of what followed from events."""
        for _ in range(min(REFRESHED_AT_ONCE, len(self._later))):
            job = self._later.popleft()
            if job.id in self.jobs:  # it may be retired by now
                self.refresh(job, now)

    def change_array(self, id: JobId, max_concurrent: int, max_slots: int, now: float) -> None:
        """Give the array of that id other limits (see `ebbtide_core.admission.gates`)."""
        self._refresh_all(self.gates.change(id, max_concurrent, max_slots, now), now)

    def change_quotas(self, quotas: Quotas, now: float) -> None:
        """Have other quotas, also for jobs that are there already; who has room keeps it (see `admission.gates`)."""
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
        # Those with room have their seats before anybody else gets one.
        order = sorted(changed.values(), key=lambda job: (job.planned is None and job.holding is None, job.sequence))
        self._refresh_all(order, now)

    def enter_gates(self, job: Job, task: Task | None) -> None:
        """Give a new job, for which there is a gate, its ticket."""
        job.task = task
        self.gates.enter(job, task)
        if job.spec.begin_at:
            heapq.heappush(self._delayed, (job.spec.begin_at, job.id))

    def _enqueue(self, queue: Queue, job: Job, now: float, waits: bool) -> None:
        """Have ``job`` in the queue where it belongs, or not at all."""
        wanted = queue.order(job) if waits else None
        if wanted is not None and job.not_before > now:
            self.look_at(job, job.not_before)
            wanted = None
        if wanted == job.queued:
            return
        if job.queued is not None:
            queue.remove(job.queued, job)
        if wanted is not None:
            queue.add(wanted, job)
        job.queued = wanted

    # --- speed ---

    def speed(self, attempt: Attempt) -> float:
        """The work that ``attempt`` does per second, by what was known when it was placed."""
        return (attempt.speedup or self.speedup)(attempt.allocation.share)

    # --- who is kept apart ---

    def add_anti_affinity(self, one: Job, other: Job, until: float) -> None:
        """Do not put the scripts of the two on one GPU until then; look at all again at that time."""
        self.anti_affinity.remember(one, other, until)
        for pool in self.pools.values():
            pool.books.anti_affinity = self.anti_affinity
        self.look_at(one, until)

    @property
    def has_anti_affinity(self) -> bool:
        """Whether any two scripts are."""
        return any(pool.books.anti_affinity is not None for pool in self.pools.values())

    def end_anti_affinity(self, now: float) -> None:
        """Let those be together again whose time is up."""
        if not self.anti_affinity.forget(now):
            for pool in self.pools.values():
                pool.books.anti_affinity, pool.changed = None, True

    # --- room ---

    def place(self, job: Job, allocation: Allocation) -> None:
        """The job gets an attempt on ``allocation``, instead of what was planned before."""
        self.unplan(job)
        if self.aside:
            self.aside.pop(job.id, None)
        pool = self.pools[job.pool]
        pool.books.occupy(job.id, allocation)
        job.planned = allocation
        pool.planned[job.id] = job

    def vacate(self, job: Job) -> None:
        """The newest attempt of the job is proven over; if nobody asked for that, it gives up its room only now."""
        attempt, pool = job.attempts[-1], self.pools[job.pool]
        if attempt.stop is None and attempt.exited is None:
            pool.books.vacate(job.id, attempt.allocation)
            job.planned = None
            del pool.planned[job.id]
        else:
            pool.books.free(job.id, attempt.allocation)
        if pool.claims:  # nobody else asks
            pool.freed_nodes.update(attempt.allocation.node_ids)

    def promise(self, job: Job, allocation: Allocation) -> None:
        """Keep ``allocation`` for the job, instead of what was planned before."""
        pool = self.pools[job.pool]
        if job.planned is not None:
            _release(pool, job.id, job.planned)
        pool.books.promise(job.id, allocation)
        job.planned = allocation
        pool.planned[job.id] = pool.claims[job.id] = job

    def unplan(self, job: Job) -> None:
        """Plan nothing for the job any more."""
        if job.planned is not None:
            pool = self.pools[job.pool]
            _release(pool, job.id, job.planned)
            job.planned = None
            del pool.planned[job.id]
            pool.claims.pop(job.id, None)

    def jobs_on_gpus(self, node: Node) -> list[Job]:
        """Those of them that hold GPUs of it: a node has few of these, and perhaps very many others."""
        return [self.jobs[id] for id in sorted(node.on_gpus)]

    def jobs_on(self, node: Node) -> list[Job]:
        """The jobs with an attempt on ``node`` that is not proven over."""
        return [self.jobs[id] for id in sorted(node.attempts)]

    # --- times ---

    def set_deadline(self, job: Job, time: float) -> None:
        """Remember that the job's time limit ends at ``time`` if it runs on."""
        heapq.heappush(self._deadlines, (time, job.id))

    def look_at(self, job: Job, time: float) -> None:
        """See to it that something is due at ``time``, because of ``job``."""
        heapq.heappush(self._delayed, (time, job.id))

    def leave_queue(self, job: Job) -> None:
        """Take ``job`` out of the queue, so that what it needs may change; `refresh` puts it back."""
        if job.queued is not None:
            pool = self.pools[job.pool]
            pool.queue.remove(job.queued, job)
            job.queued = None
            if pool.ranking is not None:
                pool.ranking.update(job)

    def is_due(self, now: float) -> bool:
        """Whether something is due by itself."""
        time = self.next_time()
        return self.overdue or (time is not None and time <= now)

    def due_deadlines(self, now: float) -> list[Job]:
        """The jobs whose time limit may have ended, on silent nodes, too; asked for once each."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            due.append(self.jobs.get(heapq.heappop(self._deadlines)[1]))
        return [job for job in due if job is not None and job.running]

    def end_delays(self, now: float) -> None:
        """Let the jobs whose back-off is over, or whose time has come, stand in the queue, the oldest first."""
        due = []
        while self._delayed and self._delayed[0][0] <= now:
            due.append(self.jobs.get(heapq.heappop(self._delayed)[1]))
        for id in {job.id for job in due if job is not None} & self.left_out:
            for node, until in list(self.jobs[id].left_out_until.items()):
                if until <= now:
                    self.admit(self.jobs[id], node)
        self._refresh_all(sorted((job for job in due if job is not None), key=_sequence), now)

    def admit(self, job: Job, node: NodeId) -> None:
        """Let ``job`` go once more to a node that was left out; if a launch fails there again, it is left out again."""
        self.leave_queue(job)
        job.excluded -= {node}
        job.excluded_because.pop(node, None)
        del job.left_out_until[node]
        job.launches_in_vain[node] = limits.MAX_LAUNCHES_IN_VAIN - 1
        if not job.left_out_until:
            self.left_out.discard(job.id)

    def next_time(self) -> float | None:
        """When something is due next by itself."""
        if not (self._delayed or self._deadlines or self.awaited):
            return None
        times = [heap[0][0] for heap in (self._delayed, self._deadlines) if heap]
        if self.awaited:
            times.append(self.recovery_ends)
        return min(times, default=None)


def _release(pool: PoolState, job: JobId, planned: Allocation) -> None:
    pool.books.release(job, planned)
    pool.freed_nodes.update(planned.node_ids)


def _keep(index: dict[JobId, Job], job: Job, wanted: bool) -> None:
    """Have ``job`` in the index, or not."""
    if wanted:
        index[job.id] = job
    else:
        index.pop(job.id, None)


def _out_of_range(job: Job) -> bool:
    """Whether the newest attempt has a GPU count that the job may not have any more."""
    return not job.gpus_min <= job.attempts[-1].allocation.share <= job.gpus_max


def _sequence(job: Job) -> int:
    return job.sequence
