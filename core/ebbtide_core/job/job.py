"""What the cluster knows of one job, its ticket for the gates included, and the states that follow from it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop
from typing import Final

from ebbtide_core.events import AttemptRefused, Event, LogMatched
from ebbtide_core.job.meter import AttemptMeter, MeasuredRate, Setting
from ebbtide_core.model import limits
from ebbtide_core.model.dependency import Dependency
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import (
    WHOLE,
    Allocation,
    Checkpoint,
    Checkpointed,
    ExitFacts,
    GpuId,
    HeldBy,
    JobId,
    JobState,
    NodeAllocation,
    NodeId,
    Progress,
    Sharing,
    StartFacts,
    StopCause,
    SuspendMode,
    Task,
)

ITS_TURN: Final = "waiting for its turn in the queue"
"""Why a job waits of which its policy had nothing to say yet."""


class InvalidTransitionError(RuntimeError):
    """An event led from a state to one that cannot follow; carries the job's story."""


@dataclass(slots=True)
class StopOrder:
    """That an attempt was asked to end."""

    cause: StopCause
    grace_s: float
    requested: float
    reason: str
    for_job: JobId | None


@dataclass(slots=True)
class GangMember:
    """One node's part of an attempt on several. ``ended`` is Unix seconds, None if it may have processes."""

    started: bool = False
    ended: float | None = None
    exit: ExitFacts | None = None
    refusal: AttemptRefused | None = None
    freed: bool = False


@dataclass(slots=True)
class Attempt:
    """One launch of a job. Times are Unix seconds, None if not yet.

    ``reserved_s`` is the running time, of all attempts together, at which its reservation ends, if it has one.
    ``kept`` is what a swappable one has besides its ``allocation``, until it ends (see `ebbtide_core.lifecycle.swaps`).
    It lies in host memory since ``swapped``, for the ``swaps``-th time, with ``swapped_bytes``, and is to come back
    since ``returning``; until that it is ``off_gpu``. ``started`` is then None, and becomes the time at which it was
    back; ``first_started`` stays.
    ``overran``: it used more GPU memory than it was given. It runs and has used none of its GPUs since ``idle_since``,
    and is suspended for it at ``idle_until``. ``edited``: scripts that had changed when it started. Nobody uses it
    since ``unused_since``, 0 if somebody does.
    ``members`` are the nodes that were launched, if it has several (see `ebbtide_core.job.gang`); ``broken_by`` is the
    one whose failure ended it, and ``port`` where its ranks meet. ``sharing`` says how it shares its GPU with others.
    Its work is counted by ``speedup``, if that was known of its script when it was placed; ``meter`` is how fast it
    gets on, as far as this master has heard. ``matches`` are the lines of its output that a rule was found in. On the
    nodes ``leased`` it ends itself when its lease is over; ``orphaned``: its agent lost all that it knew of it.
    """

    number: int
    allocation: Allocation
    placed: float
    reserved_s: float | None = None
    sticky: bool = False
    started: float | None = None
    pid: int = 0
    resumed_step: int | None = None
    stop: StopOrder | None = None
    exited: float | None = None
    exit: ExitFacts | None = None
    freed: float | None = None
    outcome: str = ""
    published: bool = False
    kept: NodeAllocation | None = None
    swaps: int = 0
    swapped: float | None = None
    swapped_bytes: int = 0
    returning: float | None = None
    off_gpu: bool = False
    first_started: float | None = None
    members: dict[NodeId, GangMember] = field(default_factory=dict)
    start: StartFacts | None = None
    broken_by: NodeId | None = None
    port: int = 0
    sharing: Sharing | None = None
    overran: bool = False
    idle_since: float | None = None
    idle_until: float | None = None
    unused_since: float = 0.0
    edited: tuple[str, ...] = ()
    speedup: Callable[[int], float] | None = None
    meter: AttemptMeter | None = field(default=None, repr=False, compare=False)
    matches: tuple[LogMatched, ...] = ()
    leased: tuple[NodeId, ...] = ()
    orphaned: bool = False

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The nodes where processes of it may live until it has exited."""
        if not self.members:
            return self.allocation.node_ids
        return tuple([node for node, member in self.members.items() if member.ended is None])


@dataclass(slots=True)
class Suspension:
    """One time that a job stepped aside. Times are Unix seconds, None if not yet.

    ``checkpoint_s`` and ``checkpoint_bytes`` are what it took to save, None if nothing is known to be saved. It was
    ``placed`` again, ``resumed`` by the attempt with the number ``resumed_by`` (0: not yet), and ``working`` once it
    reported its first step after that, ``working_step``. ``left_step`` is the last step that it had reported when it
    ended, ``kept_step`` that of its newest checkpoint that verified, if any; ``lost`` and ``hint`` are those of a
    `WorkUnsaved`, if there was one. ``save_s`` and ``restart_s`` are what `ebbtide_core.estimates.restart_costs` makes
    of all this.
    """

    requested: float
    reason: str
    gpus_before: tuple[GpuId, ...]
    exited: float | None = None
    gpu_free: float | None = None
    resumed: float | None = None
    gpus_after: tuple[GpuId, ...] = ()
    checkpointed: Checkpointed = Checkpointed.UNKNOWN
    checkpoint_s: float | None = None
    checkpoint_bytes: int | None = None
    note: str = ""
    resumed_by: int = 0
    placed: float | None = None
    working: float | None = None
    working_step: int | None = None
    left_step: int | None = None
    kept_step: int | None = None
    lost: str = ""
    hint: str = ""
    save_s: float | None = None
    restart_s: float | None = None


@dataclass(slots=True)
class Job:
    """A job and everything that happened to it. Only the cluster changes it; others read.

    ``planned`` is the room promised to it: its running attempt's, or what is being freed for its next one.
    ``pinned_allocation`` is the only room that it can have, while it has an attempt that cannot go anywhere else. While
    it waits for that, it holds up nobody: it is asked first as soon as it is free.
    ``held_s`` is for how long its user held it while it did not run, up to ``held_since`` if that goes on.
    ``work_s`` is the work of ended attempts that was not lost, in seconds on one GPU (see
    `ebbtide_core.estimates.work`). ``priority``, ``weight`` and ``gpu_mem_bytes`` are those of now; its ``spec`` has
    those that it was submitted with. ``move_failure`` is why its checkpoint could not be copied to another node since
    it last ran, if it could not. ``suspended`` says that its last attempt stepped aside; ``returns``, that it goes to
    the head of the queue. ``save_s`` and ``restart_cost_s`` are measured (see `ebbtide_core.estimates.restart_costs`),
    None before its first suspension; ``proved`` says that it has saved when it was asked to step aside, or went on
    after the last step before. ``gpu_mem_from`` says where ``gpu_mem_bytes`` come from, if not from its ``spec``;
    ``gpu_mem_peak_bytes`` is the most that ended attempts used of one GPU, 0 if not known; ``overruns`` are the
    attempts that used too much, and ``alone_after`` the one that ran out of memory, so that it was run once more with a
    GPU of its own, 0 for none. ``pool`` is the one that it is in now, ``moves_to`` the one where it goes once it holds
    nothing, if any.
    ``task`` says which of which array it is, if it is in one; ``admission`` is what holds it back
    (`ebbtide_core.admission.gates`). It was submitted as ``again_of`` another job, or again as another, by ``ebb
    requeue``.
    ``rates`` is what was recorded of its speed (see `ebbtide_core.measuring.rates`). ``rungs`` are its results by
    steps, as a task under successive halving; None is no number (see `ebbtide_core.lifecycle.successive_halving`).
    ``constrained``: not every node will do (see `ebbtide_core.resources.eligibility`). It is kept from the nodes that
    are ``excluded`` since it was submitted, and ``excluded_because`` says why, of each; and from its ``excluded_gpus``.
    """

    id: JobId
    spec: JobSpec
    user: str
    submitted: float
    sequence: int
    gpus_min: int
    gpus_max: int
    priority: int = limits.DEFAULT_PRIORITY
    weight: float = 1.0
    gpu_mem_bytes: int = 0
    range_changed: bool = False
    state: JobState = JobState.PENDING
    reason: str = ""
    held_by: HeldBy | None = None
    attempts: list[Attempt] = field(default_factory=list)
    planned: Allocation | None = None
    pinned_allocation: Allocation | None = None
    queued: tuple[object, ...] | None = None
    suspensions: list[Suspension] = field(default_factory=list)
    ending: JobState | None = None
    ended: float | None = None
    exit_code: int | None = None
    progress: Progress | None = None
    progress_at: float = 0.0
    checkpoint: Checkpoint | None = None
    checkpoint_root_id: str = ""
    move_failure: str = ""
    preemptions: int = 0
    resizes: int = 0
    restarts: int = 0
    failures: int = 0
    fruitless_suspensions: int = 0
    requeues_in_row: int = 0
    suspended: bool = False
    returns: bool = False
    not_before: float = 0.0
    ran_s: float = 0.0
    held_s: float = 0.0
    held_since: float | None = None
    work_s: float = 0.0
    restart_cost_s: float | None = None
    save_s: float | None = None
    proved: bool = False
    gpu_mem_from: str = ""
    gpu_mem_peak_bytes: int = 0
    overruns: int = 0
    alone_after: int = 0
    rates: dict[Setting, MeasuredRate] = field(default_factory=dict)
    rungs: dict[int, float | None] = field(default_factory=dict)
    pool: str = DEFAULT_POOL
    moves_to: str = ""
    constrained: bool = False
    excluded: frozenset[NodeId] = frozenset()
    excluded_because: dict[NodeId, str] = field(default_factory=dict)
    excluded_gpus: frozenset[GpuId] = frozenset()
    launches_in_vain: dict[NodeId, int] = field(default_factory=dict)
    vain_in_row: int = 0
    left_out_until: dict[NodeId, float] = field(default_factory=dict)
    task: Task | None = None
    admission: "AdmissionRecord | None" = field(default=None, repr=False, compare=False)
    again_of: JobId | None = None
    again_as: JobId | None = None
    story: list[tuple[float, Event]] = field(default_factory=list)

    @property
    def attempt(self) -> Attempt | None:
        """The newest attempt, ended or not."""
        return self.attempts[-1] if self.attempts else None

    @property
    def live(self) -> Attempt | None:
        """The attempt that may have processes."""
        if not self.attempts:
            return None
        newest = self.attempts[-1]
        return newest if newest.exited is None else None

    @property
    def holding(self) -> Attempt | None:
        """The attempt whose GPUs are not known to be free."""
        if not self.attempts:
            return None
        newest = self.attempts[-1]
        return newest if newest.freed is None and not newest.off_gpu else None

    @property
    def off_gpu(self) -> bool:
        """Whether it lies in host memory, and waits to come back."""
        live = self.live
        return live is not None and live.off_gpu

    @property
    def preemptible(self) -> bool:
        """Whether a policy may suspend it."""
        return self.spec.suspend is not SuspendMode.NONE

    @property
    def elastic(self) -> bool:
        """Whether its GPU count may vary."""
        return self.gpus_max > self.gpus_min

    @property
    def claiming(self) -> bool:
        """Whether ``planned`` is room that is kept for its next attempt."""
        live = self.live
        return self.planned is not None and (live is None or live.stop is not None)

    @property
    def running(self) -> bool:
        """Whether an attempt lives that nobody asked to stop."""
        live = self.live
        return live is not None and live.stop is None

    @property
    def waiting(self) -> bool:
        """Whether it could be placed as far as the job itself is concerned."""
        if self.ending is not None or self.held_by is not None:
            return False
        if not self.attempts or self.attempts[-1].freed is not None:
            return True
        order = self.attempts[-1].stop
        return self.off_gpu and order is not None and not order.cause.final

    def sizes(self) -> list[int]:
        """The GPU counts that it may have, in parts, ascending: fractions 1/n below one GPU, then whole GPUs."""
        low, high = self.gpus_min, self.gpus_max
        fractions = [WHOLE // n for n in range(WHOLE // low if 0 < low < WHOLE else 1, 1, -1)]
        wholes = range(max(low, WHOLE), high + 1, WHOLE)
        return [size for size in (*fractions, *wholes) if low <= size <= high] or [low]

    def running_s(self, now: float) -> float:
        """Seconds in which it ran, over all attempts."""
        live = self.live
        current = now - live.started if live is not None and live.started is not None else 0.0
        return self.ran_s + max(0.0, current)

    def waiting_s(self, now: float) -> float:
        """Seconds since it was submitted in which it did not run, though its user did not hold or suspend it."""
        until = self.ended if self.ended is not None else now
        held_s = self.held_s + (until - self.held_since if self.held_since is not None else 0.0)
        return max(0.0, until - self.submitted - self.running_s(now) - held_s)

    def note_held(self, now: float) -> None:
        """Add up for how long its user held it while it did not run."""
        live = self.live
        rests = self.held_by is HeldBy.USER and (live is None or live.started is None)
        if rests and self.held_since is None:
            self.held_since = now
        elif not rests and self.held_since is not None:
            self.held_s, self.held_since = self.held_s + now - self.held_since, None


@dataclass(slots=True, eq=False)
class Cap:
    """How many jobs, with how many parts of GPUs, may have a seat at a time; None is no limit. And how many have."""

    max_jobs: int | None = None
    max_parts: int | None = None
    jobs: int = 0
    parts: int = 0
    elastic: "dict[int, AdmissionRecord]" = field(default_factory=dict)

    def fits(self, cost: int) -> bool:
        """Whether there is a seat for one more job, of ``cost`` parts."""
        if self.max_jobs is not None and self.jobs >= self.max_jobs:
            return False
        return self.max_parts is None or self.parts + cost <= self.max_parts

    @property
    def exceeded(self) -> bool:
        """Whether more have a seat than should: the limit was lowered since."""
        if self.max_jobs is not None and self.jobs > self.max_jobs:
            return True
        return self.max_parts is not None and self.parts > self.max_parts

    def take(self, admission: "AdmissionRecord") -> None:
        """Count it."""
        self.jobs += 1
        self.parts += admission.cost
        if admission.asked > admission.cost:
            self.elastic[admission.job.sequence] = admission

    def give_back(self, admission: "AdmissionRecord") -> None:
        """Count it no more."""
        self.jobs -= 1
        self.parts -= admission.cost
        self.elastic.pop(admission.job.sequence, None)

    def shared_out(self, wanted: "Callable[[AdmissionRecord], int]") -> "Iterator[tuple[AdmissionRecord, int]]":
        """What each elastic job may have at most, in parts; those submitted first get what is left over."""
        spare = None if self.max_parts is None else max(0, self.max_parts - self.parts)
        for _, admission in sorted(self.elastic.items()):
            more = wanted(admission) - admission.cost
            if spare is not None:
                more = min(more, spare)
                spare -= more
            yield admission, admission.cost + more


@dataclass(slots=True, eq=False)
class UserQuota:
    """A user with a quota. ``heads`` are the first jobs of groups that would fit in those, by sequence: a heap."""

    name: str
    cap: Cap
    unfinished: int = 0
    heads: list[int] = field(default_factory=list)
    groups: "dict[int, AdmissionQueue]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class AdmissionQueue:
    """Jobs that wait for the same seats: an array's, or those of a user's jobs that are in none.

    ``queue`` is a heap of those without a seat; ``ready`` is the one of them that stands for it at its user's quota.
    """

    array: JobId
    cap: Cap
    user_quota: UserQuota | None
    queue: "list[tuple[int, AdmissionRecord]]" = field(default_factory=list)
    ready: int | None = None

    def head(self) -> "AdmissionRecord | None":
        """The first that wants a seat."""
        queue = self.queue
        while queue and not queue[0][1].wants:
            heappop(queue)[1].in_queue = False
        return queue[0][1] if queue else None


@dataclass(slots=True, eq=False)
class AdmissionRecord:
    """What the gates know of one job.

    ``after`` is what it still waits for. With a seat it counts for ``cost`` parts of GPUs. It ``wants`` one if nothing
    else holds it back. Its user asked for ``asked`` parts at most; ``bound`` is what it may have of that. ``why`` is
    what held it back last, until it has room.
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
    over: bool = False
    why: str = ""

    def ask(self, gpus_max: int) -> None:
        """The job has another range of sizes now."""
        self.asked = self.in_array = self.bound = gpus_max
        self.resized = True

    @property
    def caps(self) -> tuple[Cap, ...]:
        """Where it counts."""
        group = self.group
        return (group.cap,) if group.user_quota is None else (group.cap, group.user_quota.cap)


_S = JobState
TRANSITIONS: Final = frozenset(
    {
        (_S.PENDING, _S.STARTING),
        (_S.PENDING, _S.FAILED),
        (_S.PENDING, _S.CANCELLED),
        # One that is stopped early has no attempt then.
        (_S.PENDING, _S.COMPLETED),
        (_S.SUSPENDED, _S.COMPLETED),
        (_S.SUSPENDED, _S.STARTING),
        (_S.SUSPENDED, _S.FAILED),
        (_S.SUSPENDED, _S.CANCELLED),
        # One that lies in host memory has an attempt that lives.
        (_S.SUSPENDED, _S.STOPPING),
        (_S.SUSPENDED, _S.UNREACHABLE),
        # An attempt may end, or be asked to, before it was seen to run.
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
"""Which state may follow which; anything else is a bug and raises with the job's story."""


# An enum's members are looked up slowly, and this is done after every event.
_PENDING, _SUSPENDED, _STARTING, _RUNNING = _S.PENDING, _S.SUSPENDED, _S.STARTING, _S.RUNNING


def derive_state(job: Job, unreachable: frozenset[NodeId] | set[NodeId]) -> JobState:
    """The state that the facts about ``job`` amount to, given the nodes that are silent."""
    if job.ending is not None:
        return job.ending
    if not job.attempts or (live := job.attempts[-1]).exited is not None:
        return _SUSPENDED if job.suspended else _PENDING
    if unreachable and not unreachable.isdisjoint(live.nodes):
        return JobState.UNREACHABLE
    if live.stop is not None:
        if live.stop.cause.final:
            return JobState.STOPPING
        return _SUSPENDED if live.off_gpu else JobState.SUSPENDING
    return _RUNNING if live.started is not None else _STARTING
