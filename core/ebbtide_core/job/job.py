"""Holds what the cluster knows of one job, with its attempts and its admission record, and derives the job's state."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop
from typing import Final

from ebbtide_core.events import Event, LogMatched
from ebbtide_core.job.facets import (
    ALONE,
    ANYWHERE,
    FIRST,
    NO_GPU_MEMORY,
    NO_RETRIES,
    NO_TIMES,
    NOTHING_MEASURED,
    NOTHING_SAVED,
    AttemptEnd,
    Eligibility,
    End,
    Gang,
    GpuMemory,
    IdleTime,
    Lineage,
    Measured,
    NextAttempt,
    Retries,
    Saved,
    Suspending,
    Swap,
    Times,
)
from ebbtide_core.job.meter import AttemptMeter
from ebbtide_core.model import limits
from ebbtide_core.model.dependency import Dependency
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import (
    SWAPPED_FOR,
    WHOLE,
    Allocation,
    Checkpointed,
    GpuId,
    HeldBy,
    JobId,
    JobState,
    NodeId,
    Sharing,
    StartFacts,
    StopCause,
    SuspendMode,
)

ITS_TURN: Final = "waiting for its turn in the queue"
"""The reason of a waiting job for which its policy has given no other reason yet."""


@mypyc_attr(native_class=False)
class InvalidTransitionError(RuntimeError):
    """An event led from one state to another that cannot follow it; the message has the job's story."""


@dataclass(slots=True)
class StopOrder:
    """A request to an attempt to end, made at Unix time ``requested``; ``for_job`` gets the room, if any job does."""

    cause: StopCause
    grace_s: float
    requested: float
    reason: str
    for_job: JobId | None


@dataclass(slots=True)
class Attempt:
    """One launch of a job. Times are Unix seconds, None if not yet."""

    number: int
    """1 for the first attempt of its job, and so on."""
    allocation: Allocation
    placed: float
    """When it was given its allocation."""
    reserved_s: float | None = None
    """The running time, in seconds over all attempts, at which its reservation ends, if it has one."""
    sticky: bool = False
    """Whether its slot is sticky, so that no policy preempts it."""
    started: float | None = None
    """When it was seen to run, or was back on its GPU; None while it is in host memory."""
    first_started: float | None = None
    """When it was first seen to run."""
    pid: int = 0
    resumed_step: int | None = None
    """The step from which it went on, if it reported one."""
    stop: StopOrder | None = None
    """The last request to it to end, None as long as it is to go on."""
    end: AttemptEnd | None = None
    """How it ended; None as long as it may have processes."""
    saved_at: float | None = None
    """When it last published a checkpoint; None if it never did."""
    swap: Swap | None = None
    """What its GPU memory is to be moved with; None if it is not swappable."""
    off_gpu: bool = False
    """Whether its memory is in host memory, and it was not asked to come back."""
    gang: Gang | None = None
    """How far its nodes are; None if it is on one node, or if it is known only as a whole."""
    start: StartFacts | None = None
    """What its start consisted of, if it reported its first step."""
    sharing: Sharing | None = None
    """How it shares its GPU, if it does."""
    overran: bool = False
    """Whether it used more GPU memory than it was given."""
    idle: IdleTime | None = None
    """Since when it has used none of its GPUs; None while it uses them, as far as is known."""
    unused_since: float = 0.0
    """When a user last used the session, 0 if it is in use."""
    edited: tuple[str, ...] = ()
    """The scripts that had changed since the submit when it started."""
    speedup: Callable[[int], float] | None = None
    """The curve that counts its work, if one was known of its script when it was placed."""
    meter: AttemptMeter | None = field(default=None, repr=False, compare=False)
    """Measures its speed from the reports that this master has heard."""
    matches: tuple[LogMatched, ...] = ()
    """The lines of its output that a log rule matched."""
    leased: tuple[NodeId, ...] = ()
    """The nodes on which it ends by itself when its lease is over."""
    orphaned: bool = False
    """Whether its agent lost its record."""

    @property
    def swaps(self) -> int:
        """How often it was moved to host memory."""
        return self.swap.count if self.swap is not None else 0

    @property
    def published(self) -> bool:
        """Whether it has published a checkpoint."""
        return self.saved_at is not None

    @property
    def freed(self) -> float | None:
        """When what it held was proven to be free."""
        return self.end.freed if self.end is not None else None

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The nodes where the attempt may have processes, as long as it has not ended."""
        if self.gang is None:
            return self.allocation.node_ids
        return tuple([node for node, member in self.gang.members.items() if member.ended is None])


@dataclass(slots=True)
class Suspension:
    """One time that a job stepped aside. Times are Unix seconds, None if not yet."""

    requested: float
    reason: str
    gpus_before: tuple[GpuId, ...]
    exited: float | None = None
    """When the job had left its GPUs."""
    gpu_free: float | None = None
    """When they were proven to be free."""
    resumed: float | None = None
    """When the job ran again."""
    gpus_after: tuple[GpuId, ...] = ()
    checkpointed: Checkpointed = Checkpointed.UNKNOWN
    checkpoint_s: float | None = None
    """How long its save took, None if it is not known to have saved."""
    checkpoint_bytes: int | None = None
    """How large that save was, None if that is not known."""
    note: str = ""
    resumed_by: int = 0
    """The number of the attempt that resumed the job, 0 before."""
    placed: float | None = None
    """When that attempt was placed, or asked to come back from host memory."""
    working: float | None = None
    """When it reported its first step."""
    working_step: int | None = None
    """That step."""
    left_step: int | None = None
    """The last step that the job had reported when it ended."""
    kept_step: int | None = None
    """The step of its newest checkpoint that verified, if any."""
    lost: str = ""
    hint: str = ""
    """Both are those of its `WorkUnsaved` event, if there was one."""
    save_s: float | None = None
    """How long it took to step aside (see `ebbtide_core.estimates.restart_costs`)."""
    restart_s: float | None = None
    """How long it took from the placing until the job worked again."""


@dataclass(slots=True)
class Job:
    """A job and everything that happened to it. Only the cluster changes it; all others read.

    What is read all the time is here; the rest is in facets (`ebbtide_core.job.facets`).
    """

    id: JobId
    spec: JobSpec
    """What its user asked for when it was submitted."""
    user: str
    submitted: float
    """Unix time."""
    sequence: int
    """Its number among all submits, which orders jobs that are equal otherwise."""
    gpus_min: int
    gpus_max: int
    """The range of shares that it may have now, in parts of GPUs."""
    priority: int = limits.DEFAULT_PRIORITY
    weight: float = 1.0
    """Both as they are now; the spec has those of the submit."""
    range_changed: bool = False
    """Whether its range was ever changed, so that its attempt may be out of it."""
    state: JobState = JobState.PENDING
    reason: str = ""
    """Why it is in this state, in words."""
    held_by: HeldBy | None = None
    attempts: list[Attempt] = field(default_factory=list)
    planned: Allocation | None = None
    """The room promised to it: that of its running attempt, or what is being freed for its next one."""
    queued: tuple[object, ...] | None = None
    """Its key in the queue of its pool, None while it is not in there."""
    suspensions: list[Suspension] = field(default_factory=list)
    end: End | None = None
    """How it ended, None as long as it may go on."""
    pool: str = DEFAULT_POOL
    """The pool in which it is now."""
    next: NextAttempt = FIRST
    lineage: Lineage = ALONE
    admission: "AdmissionRecord | None" = field(default=None, repr=False, compare=False)
    """Its record at the gates (`ebbtide_core.admission.gates`), None if no gate concerns it."""
    story: list[tuple[float, Event]] = field(default_factory=list)
    """The events about it, with their Unix times."""
    times: Times = NO_TIMES
    measured: Measured = NOTHING_MEASURED
    saved: Saved = NOTHING_SAVED
    suspending: Suspending = field(default_factory=Suspending)
    retries: Retries = NO_RETRIES
    gpu_memory: GpuMemory = NO_GPU_MEMORY
    eligibility: Eligibility = ANYWHERE

    @property
    def exit_code(self) -> int | None:
        """The exit code of the job if it is over, else of the last attempt that ended; None if that is not known."""
        if self.end is not None:
            return self.end.exit_code
        for attempt in reversed(self.attempts):
            if attempt.end is not None and attempt.end.exit is not None:
                return attempt.end.exit.code
        return None

    @property
    def attempt(self) -> Attempt | None:
        """The newest attempt, ended or not."""
        return self.attempts[-1] if self.attempts else None

    @property
    def live(self) -> Attempt | None:
        """The attempt that may have processes, None if there is none."""
        if not self.attempts:
            return None
        newest = self.attempts[-1]
        return newest if newest.end is None else None

    @property
    def holding(self) -> Attempt | None:
        """The attempt whose GPUs are not known to be free, None if there is none."""
        if not self.attempts:
            return None
        newest = self.attempts[-1]
        is_free = newest.end is not None and newest.end.freed is not None
        return newest if not is_free and not newest.off_gpu else None

    @property
    def pinned_allocation(self) -> Allocation | None:
        """The only room that the job can have while it has an attempt that cannot go anywhere else, else None.

        A job that waits for its pinned allocation blocks no other job, and is asked first once that is free.
        """
        if not self.attempts:
            return None
        newest = self.attempts[-1]
        return newest.allocation if newest.swap is not None and newest.end is None else None

    @property
    def off_gpu(self) -> bool:
        """Whether its attempt is in host memory, and waits to come back."""
        live = self.live
        return live is not None and live.off_gpu

    @property
    def preemptible(self) -> bool:
        """Whether a policy may suspend the job."""
        return self.spec.suspend is not SuspendMode.NONE

    @property
    def resizable(self) -> bool:
        """Whether the job may be resized while it runs: that suspends it, and a hold keeps it from coming back."""
        return self.preemptible and self.held_by is None

    @property
    def elastic(self) -> bool:
        """Whether the job's GPU count may vary."""
        return self.gpus_max > self.gpus_min

    @property
    def claiming(self) -> bool:
        """Whether ``planned`` is room that is kept for the job's next attempt."""
        live = self.live
        return self.planned is not None and (live is None or live.stop is not None)

    @property
    def running(self) -> bool:
        """Whether the job has a live attempt that was not asked to stop."""
        live = self.live
        return live is not None and live.stop is None

    @property
    def waiting(self) -> bool:
        """Whether nothing about the job itself keeps it from being placed."""
        if self.end is not None or self.held_by is not None:
            return False
        if not self.attempts or self.attempts[-1].freed is not None:
            return True
        order = self.attempts[-1].stop
        return self.off_gpu and order is not None and order.cause in SWAPPED_FOR  # for others it is being ended

    def sizes(self) -> list[int]:
        """Return the GPU counts that the job may have, in parts, ascending: 1/n below one GPU, then whole GPUs."""
        low, high = self.gpus_min, self.gpus_max
        fractions = [WHOLE // n for n in range(WHOLE // low if 0 < low < WHOLE else 1, 1, -1)]
        wholes = range(max(low, WHOLE), high + 1, WHOLE)
        return [size for size in (*fractions, *wholes) if low <= size <= high] or [low]

    def running_s(self, now: float) -> float:
        """Return for how many seconds the job ran until ``now``, over all attempts."""
        live = self.live
        current = now - live.started if live is not None and live.started is not None else 0.0
        return self.times.ran_s + max(0.0, current)

    def waiting_s(self, now: float) -> float:
        """Return for how many seconds since its submit the job neither ran nor was held or suspended by its user."""
        until = self.end.at if self.end is not None else now
        times = self.times
        held_s = times.held_s + (until - times.held_since if times.held_since is not None else 0.0)
        return max(0.0, until - self.submitted - self.running_s(now) - held_s)

    def note_held(self, now: float) -> None:
        """Count the time in which a user holds the job and it does not run."""
        live, times = self.live, self.times
        rests = self.held_by is HeldBy.USER and (live is None or live.started is None)
        if rests and times.held_since is None:
            self.times = replace(times, held_since=now)
        elif not rests and times.held_since is not None:
            self.times = replace(times, held_s=times.held_s + now - times.held_since, held_since=None)


@dataclass(slots=True, eq=False)
class Cap:
    """Limits on the jobs, and on their parts of GPUs, that are admitted at a time (None: no limit), and the counts."""

    max_jobs: int | None = None
    max_parts: int | None = None
    jobs: int = 0
    parts: int = 0
    elastic: "dict[int, AdmissionRecord]" = field(default_factory=dict)

    def fits(self, cost: int) -> bool:
        """Return whether one more job, of ``cost`` parts, may be admitted."""
        if self.max_jobs is not None and self.jobs >= self.max_jobs:
            return False
        return self.max_parts is None or self.parts + cost <= self.max_parts

    @property
    def exceeded(self) -> bool:
        """Whether more is admitted than the limit allows, because the limit was lowered since."""
        if self.max_jobs is not None and self.jobs > self.max_jobs:
            return True
        return self.max_parts is not None and self.parts > self.max_parts

    def take(self, admission: "AdmissionRecord") -> None:
        """Count an admitted job."""
        self.jobs += 1
        self.parts += admission.cost
        if admission.asked > admission.cost and not admission.fixed:
            self.elastic[admission.job.sequence] = admission

    def give_back(self, admission: "AdmissionRecord") -> None:
        """Stop counting a job."""
        self.jobs -= 1
        self.parts -= admission.cost
        self.elastic.pop(admission.job.sequence, None)

    def shared_out(self, wanted: "Callable[[AdmissionRecord], int]") -> "Iterator[tuple[AdmissionRecord, int]]":
        """Yield how many parts each elastic job may have at most; jobs submitted first get the spare parts first."""
        spare = None if self.max_parts is None else max(0, self.max_parts - self.parts)
        for _, admission in sorted(self.elastic.items()):
            more = wanted(admission) - admission.cost
            if spare is not None:
                more = min(more, spare)
                spare -= more
            yield admission, admission.cost + more


@dataclass(slots=True, eq=False)
class UserQuota:
    """A user with a quota.

    ``heads`` is a heap of the sequence numbers of the first jobs of ``groups`` that would fit into their groups.
    """

    name: str
    cap: Cap
    unfinished: int = 0
    heads: list[int] = field(default_factory=list)
    groups: "dict[int, AdmissionQueue]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class AdmissionQueue:
    """Jobs that wait for the same places: the tasks of an array, or a user's jobs that are in no array.

    ``queue`` is a heap of the jobs that are not admitted. ``ready`` is the sequence number of the job among them that
    stands for the group in the heap of its user's quota, None if no job does.
    """

    array: JobId
    cap: Cap
    user_quota: UserQuota | None
    queue: "list[tuple[int, AdmissionRecord]]" = field(default_factory=list)
    ready: int | None = None

    def head(self) -> "AdmissionRecord | None":
        """Return the first job that wants a place, None if none does.

        A job that is larger than its user's quota is passed over. It comes back when either changes.
        """
        queue, most = self.queue, None if self.user_quota is None else self.user_quota.cap.max_parts
        while queue and not (queue[0][1].wants and (most is None or queue[0][1].cost <= most)):
            heappop(queue)[1].in_queue = False
        return queue[0][1] if queue else None


@dataclass(slots=True, eq=False)
class AdmissionRecord:
    """What the gates know of one job.

    ``after`` are the dependencies that are not met yet. An ``admitted`` job counts for ``cost`` parts of GPUs. The job
    ``wants`` to be admitted if nothing but a limit holds it back. It has a ``fixed`` size while it runs and cannot be
    suspended, and leaves what a limit leaves over to others. Its user asked for ``asked`` parts at most;
    ``in_array`` is what its array's limit leaves it of those, and ``bound`` what it may have in the end. ``why`` is
    what held it back last, in words, until it has room.
    """

    job: Job
    group: AdmissionQueue
    begin_at: float
    asked: int
    bound: int
    in_array: int
    cost: int
    after: set[Dependency] = field(default_factory=set)
    admitted: bool = False
    wants: bool = False
    in_queue: bool = False
    resized: bool = False
    fixed: bool = False
    over: bool = False
    why: str = ""

    def ask(self, gpus_max: int) -> None:
        """Note that the job may have up to ``gpus_max`` parts of GPUs from now on."""
        self.asked = self.in_array = self.bound = gpus_max
        self.resized = True

    @property
    def caps(self) -> tuple[Cap, ...]:
        """The limits that the job counts against."""
        group = self.group
        return (group.cap,) if group.user_quota is None else (group.cap, group.user_quota.cap)


_S = JobState
TRANSITIONS: Final = frozenset(
    {
        (_S.PENDING, _S.STARTING),
        (_S.PENDING, _S.FAILED),
        (_S.PENDING, _S.CANCELLED),
        # A task that successive halving stops early has no live attempt.
        (_S.PENDING, _S.COMPLETED),
        (_S.SUSPENDED, _S.COMPLETED),
        (_S.SUSPENDED, _S.STARTING),
        (_S.SUSPENDED, _S.FAILED),
        (_S.SUSPENDED, _S.CANCELLED),
        # A swapped-out job is SUSPENDED and has a live attempt.
        (_S.SUSPENDED, _S.STOPPING),
        (_S.SUSPENDED, _S.UNREACHABLE),
        (_S.SUSPENDED, _S.PENDING),  # its attempt failed, and the next one starts anew
        # An attempt may end, or be asked to end, before it was seen to run.
        *((live, after) for live in (_S.STARTING, _S.RUNNING) for after in (
            _S.SUSPENDING, _S.STOPPING, _S.UNREACHABLE,
            _S.PENDING, _S.SUSPENDED, _S.COMPLETED, _S.FAILED, _S.CANCELLED,
        )),
        (_S.STARTING, _S.RUNNING),
        *((_S.SUSPENDING, after) for after in (
            _S.STOPPING, _S.UNREACHABLE, _S.PENDING, _S.SUSPENDED, _S.COMPLETED, _S.FAILED, _S.CANCELLED,
        )),
        *((_S.STOPPING, after) for after in (_S.UNREACHABLE, _S.COMPLETED, _S.FAILED, _S.CANCELLED)),
        *((_S.UNREACHABLE, after) for after in (
            _S.STARTING, _S.RUNNING, _S.SUSPENDING, _S.STOPPING,
            _S.PENDING, _S.SUSPENDED, _S.COMPLETED, _S.FAILED, _S.CANCELLED,
        )),
    }
)  # fmt: skip
"""Pairs of states that may follow each other; any other change is a bug, and raises `InvalidTransitionError`."""


# Looking up a member of an enum is slow, and `derive_state` runs after every event.
_PENDING, _SUSPENDED, _STARTING, _RUNNING = _S.PENDING, _S.SUSPENDED, _S.STARTING, _S.RUNNING


def derive_state(job: Job, unreachable: frozenset[NodeId] | set[NodeId]) -> JobState:
    """Derive the state of ``job`` from its facts and from the nodes that are silent."""
    if job.end is not None:
        return job.end.state
    if not job.attempts or (live := job.attempts[-1]).end is not None:
        return _SUSPENDED if job.next.resumes else _PENDING
    if unreachable and not unreachable.isdisjoint(live.nodes):
        return JobState.UNREACHABLE
    if live.stop is not None:
        if live.stop.cause.final:
            return JobState.STOPPING
        return _SUSPENDED if live.off_gpu else JobState.SUSPENDING
    return _RUNNING if live.started is not None else _STARTING
