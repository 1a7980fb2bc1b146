"""Facts, in the past tense: the only way anything gets into the core.

A durable event is journalled before anything that follows from it leaves the master; the cluster's state is the fold of
the durable events. What the core itself decides (`AttemptPlaced`, `StopRequested`, `RoomClaimed`, …) is recorded as a
fact too, so that recovery never runs a policy again.
"""

from typing import ClassVar, Final

from ebbtide_core.frozen import frozen
from ebbtide_core.model import (
    Allocation,
    AttemptRef,
    Checkpoint,
    ExitFacts,
    ForeignProcess,
    GpuFacts,
    GpuId,
    HeldBy,
    JobId,
    NodeId,
    Progress,
    RefusalCause,
    Sharing,
    StartFacts,
    StopCause,
)
from ebbtide_core.spec import JobSpec

EVERY_NODE: Final = NodeId("")
"""Stands for all nodes of an attempt, in what is said of it as a whole."""


@frozen
class Event:
    """Base of all events."""

    durable: ClassVar[bool] = True


# --- the master's own life -------------------------------------------------------------------------------------------


@frozen
class MasterStarted(Event):
    """A master took over: no node is connected, and nothing is placed before the nodes were heard again."""

    epoch: int


@frozen
class Quiesced(Event):
    """Everything is to stop, and nothing is to start; ``kill`` leaves out the grace periods."""

    kill: bool = False


@frozen
class Unquiesced(Event):
    """Jobs may start again."""


@frozen
class SchedulingDue(Event):
    """Something changed, or a time came that a policy had named: look at everything again."""

    durable: ClassVar[bool] = False


# --- wishes of users -------------------------------------------------------------------------------------------------


@frozen
class JobSubmitted(Event):
    """A job was accepted; ``operation_id`` makes a repeated submit find it again."""

    job: JobId
    spec: JobSpec
    user: str
    hold: bool = False
    operation_id: str = ""


@frozen
class SuspendRequested(Event):
    """A user wants the job to step aside until they resume it."""

    job: JobId


@frozen
class ResumeRequested(Event):
    """A user lets a suspended job go on."""

    job: JobId


@frozen
class ResizeRequested(Event):
    """A user gives the job another range of GPUs, in parts."""

    job: JobId
    gpus_min: int
    gpus_max: int


@frozen
class JobChanged(Event):
    """A user gave the job another priority or weight, or both; what it had is for its story."""

    job: JobId
    priority: int
    weight: float
    old_priority: int
    old_weight: float
    user: str = ""


@frozen
class DrillRequested(Event):
    """A user wants the running job to step aside and to come back at once, to see whether it can."""

    job: JobId


@frozen
class CancelRequested(Event):
    """A user gives the job up; ``now`` leaves out the grace period."""

    job: JobId
    now: bool = False


@frozen
class HoldRequested(Event):
    """A user does not want the job to start (again) until they release it; a running attempt goes on."""

    job: JobId


@frozen
class ReleaseRequested(Event):
    """A user or the system's hold is over."""

    job: JobId


@frozen
class JobRetired(Event):
    """A finished job is forgotten; the journal keeps its story."""

    job: JobId


# --- reports of nodes ------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class NodeRegistered(Event):
    """A node connected. ``known`` are the attempts that it has, ended ones included.

    With ``share_with_foreign``, shares of GPUs are offered beside processes of no job (see `ebbtide_core.foreign`).
    """

    node: NodeId
    hostname: str
    boot_id: str
    gpus: tuple[GpuFacts, ...]
    cpus: float
    mem_bytes: int
    checkpoint_root_id: str
    gpu_backend: str
    version: str
    address: str = ""
    known: tuple[AttemptRef, ...] = ()
    share_with_foreign: bool = False


@frozen
class NodeDisconnected(Event):
    """The stream to a node broke; it may be back in a moment."""

    durable: ClassVar[bool] = False
    node: NodeId


@frozen
class NodeLost(Event):
    """A node has been silent for too long; what ran there may still run."""

    node: NodeId
    silent_s: float


@frozen
class GpuHealthChanged(Event):
    """A GPU became unusable, or usable again. If it is ``gone``, so is what computed on it."""

    node: NodeId
    gpu: GpuId
    healthy: bool
    reason: str = ""
    gone: bool = False


@frozen
class ForeignUseChanged(Event):
    """All processes of no job that are on a GPU now; none: the last has left."""

    node: NodeId
    gpu: GpuId
    processes: tuple[ForeignProcess, ...]


@frozen
class AttemptStarted(Event):
    """The job's process runs; ``resumed_step`` is the step of the checkpoint that it was given.

    ``swaps`` is how often it has left its GPU for host memory before, and come back. ``node`` says whose part of an
    attempt on several nodes this is about, here and below; empty: all of it. ``port`` is where the ranks meet, if the
    node chose one. ``sharing`` is how it shares its GPU with others, if it does.
    """

    job: JobId
    attempt: int
    pid: int
    resumed_step: int | None = None
    swaps: int = 0
    node: NodeId = EVERY_NODE
    port: int = 0
    sharing: Sharing | None = None


@frozen
class FirstStepMade(Event):
    """The attempt has made its first step; ``start`` is how it came there."""

    job: JobId
    attempt: int
    start: StartFacts


@frozen
class ProgressReported(Event):
    """The job said how far it is."""

    durable: ClassVar[bool] = False
    job: JobId
    attempt: int
    progress: Progress


@frozen
class CheckpointPublished(Event):
    """A checkpoint is complete on disk."""

    job: JobId
    attempt: int
    checkpoint: Checkpoint


@frozen
class AttemptExited(Event):
    """No process of the attempt is left. With ``freed``, its GPUs are free, too, and no `AttemptFreed` follows."""

    job: JobId
    attempt: int
    exit: ExitFacts
    progress: Progress | None = None
    freed: bool = False
    node: NodeId = EVERY_NODE


@frozen
class AttemptFreed(Event):
    """The attempt's GPUs are free again, but for ``dirty_gpus``, and ``dirty_reasons`` says why each is not."""

    job: JobId
    attempt: int
    dirty_gpus: tuple[GpuId, ...] = ()
    node: NodeId = EVERY_NODE
    dirty_reasons: tuple[str, ...] = ()

    def why_dirty(self, gpu: GpuId) -> str:
        """Why one of ``dirty_gpus`` is not free, in words."""
        known = dict(zip(self.dirty_gpus, self.dirty_reasons, strict=False))
        return known.get(gpu) or "its memory was not released"


@frozen
class AttemptSwapped(Event):
    """The attempt lies in host memory for the ``swaps``-th time, and its GPU is free.

    That took ``seconds``. After a `ReturnRequested` it says that the attempt could not come back; ``note`` says why.
    """

    job: JobId
    attempt: int
    swaps: int
    mem_bytes: int
    seconds: float = 0.0
    note: str = ""


@frozen
class MemoryOverran(Event):
    """The attempt uses ``used_bytes`` of a GPU of which it was given ``allowed_bytes``, by its node's measure."""

    job: JobId
    attempt: int
    gpu: GpuId
    used_bytes: int
    allowed_bytes: int


@frozen
class SessionUnused(Event):
    """Nobody uses it ``since`` then (Unix seconds; 0: it is used again), and it is ended in ``left_s``, or now."""

    job: JobId
    attempt: int
    since: float
    left_s: float = 0.0


@frozen
class AttemptRefused(Event):
    """The node did not start the attempt."""

    job: JobId
    attempt: int
    cause: RefusalCause
    reason: str
    node: NodeId = EVERY_NODE


# --- decisions -------------------------------------------------------------------------------------------------------


@frozen
class AttemptPlaced(Event):
    """The job gets a new attempt on ``allocation``, which is free; a ``sticky`` one is never preempted (`Hybrid`).

    With ``reserved_s`` it has to ask again once it has run for that long, all attempts together.
    """

    job: JobId
    attempt: int
    allocation: Allocation
    reason: str
    sticky: bool = False
    reserved_s: float | None = None


@frozen
class ReturnRequested(Event):
    """The attempt, which lies in host memory, is to go on on its GPU, which is free; else as `AttemptPlaced`."""

    job: JobId
    attempt: int
    reason: str
    sticky: bool = False
    reserved_s: float | None = None


@frozen
class StopRequested(Event):
    """The attempt is asked to end within ``grace_s``; ``for_job`` gets its place."""

    job: JobId
    attempt: int
    cause: StopCause
    grace_s: float
    reason: str
    for_job: JobId | None = None


@frozen
class WorkResumed(Event):
    """The job got to work again after a suspension: ``step`` is the first that it reported since."""

    job: JobId
    attempt: int
    step: int


@frozen
class RateMeasured(Event):
    """The attempt makes so many steps per second on ``share`` parts of GPUs: the median of ``samples`` windows.

    ``alone`` says that nobody else was on its GPUs then; ``model`` is what kind of GPUs they are.
    """

    job: JobId
    attempt: int
    share: int
    nodes: int
    alone: bool
    steps_per_s: float
    samples: int
    model: str = ""


@frozen
class InterferenceFound(Event):
    """The job is to leave the ``others`` with whom it shares a GPU: together, they get on worse than one by one.

    ``speeds`` are those of the job and of the others, in this order, relative to what they are alone there.
    """

    job: JobId
    attempt: int
    gpu: GpuId
    others: tuple[JobId, ...]
    speeds: tuple[float, ...]


@frozen
class RoomClaimed(Event):
    """What is being freed of ``allocation`` is kept for the job."""

    job: JobId
    allocation: Allocation
    reason: str


@frozen
class ClaimDropped(Event):
    """The job no longer waits for the room that it had claimed."""

    job: JobId
    reason: str


@frozen
class GpuMemoryChanged(Event):
    """The job needs ``mem_bytes`` of each GPU from now on, and as many GPUs as said, in parts; ``reason`` says why."""

    job: JobId
    mem_bytes: int
    gpus_min: int
    gpus_max: int
    reason: str


@frozen
class JobHeld(Event):
    """The system will not start the job again by itself."""

    job: JobId
    by: HeldBy
    reason: str


JobEvent = (
    JobSubmitted
    | SuspendRequested
    | ResumeRequested
    | ResizeRequested
    | JobChanged
    | DrillRequested
    | CancelRequested
    | HoldRequested
    | ReleaseRequested
    | JobRetired
    | AttemptStarted
    | FirstStepMade
    | ProgressReported
    | CheckpointPublished
    | AttemptExited
    | AttemptFreed
    | AttemptSwapped
    | MemoryOverran
    | SessionUnused
    | AttemptRefused
    | AttemptPlaced
    | ReturnRequested
    | StopRequested
    | WorkResumed
    | RateMeasured
    | InterferenceFound
    | RoomClaimed
    | ClaimDropped
    | GpuMemoryChanged
    | JobHeld
)
"""Events that are about one job."""

NodeEvent = NodeRegistered | NodeDisconnected | NodeLost | GpuHealthChanged | ForeignUseChanged
"""Events that are about one node."""

EVENT_TYPES: dict[str, type[Event]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}
"""Every event by the name under which journals have it."""
