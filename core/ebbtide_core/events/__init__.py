"""Facts, in the past tense: the only way anything gets into the core.

A durable event is journalled before anything that follows from it leaves the master; the cluster's state is the fold of
the durable events. What the core itself decides (`AttemptPlaced`, `StopRequested`, `RoomClaimed`, …) is recorded as a
fact too, so that recovery never runs a policy again.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Final

from ebbtide_core.events.admin import ConfigurationRead as ConfigurationRead
from ebbtide_core.events.arrays import ArrayChanged as ArrayChanged
from ebbtide_core.events.arrays import DependencyFailed as DependencyFailed
from ebbtide_core.events.arrays import JobRequeued as JobRequeued
from ebbtide_core.events.arrays import RequeueRequested as RequeueRequested
from ebbtide_core.events.base import Event as Event
from ebbtide_core.events.bookings import BookingCancelled as BookingCancelled
from ebbtide_core.events.bookings import BookingMade as BookingMade
from ebbtide_core.events.bookings import BookingMoved as BookingMoved
from ebbtide_core.events.fencing import AttemptOrphaned as AttemptOrphaned
from ebbtide_core.events.fencing import FenceFailed as FenceFailed
from ebbtide_core.events.fencing import NodeConfirmedDead as NodeConfirmedDead
from ebbtide_core.events.fencing import NodeRemoved as NodeRemoved
from ebbtide_core.events.fencing import SilenceBelieved as SilenceBelieved
from ebbtide_core.events.fencing import SilenceDoubted as SilenceDoubted
from ebbtide_core.events.fencing import StrayEndRequested as StrayEndRequested
from ebbtide_core.events.fencing import StrayFound as StrayFound
from ebbtide_core.events.fencing import StrayGone as StrayGone
from ebbtide_core.events.idle import JobBusy as JobBusy
from ebbtide_core.events.idle import JobIdle as JobIdle
from ebbtide_core.events.journal import JobsForgotten as JobsForgotten
from ebbtide_core.events.journal import JournalCompacted as JournalCompacted
from ebbtide_core.events.journal import JournalRestored as JournalRestored
from ebbtide_core.events.journal import RateForgotten as RateForgotten
from ebbtide_core.events.journal import RunForgotten as RunForgotten
from ebbtide_core.events.logs import GpusExcluded as GpusExcluded
from ebbtide_core.events.logs import LogMatched as LogMatched
from ebbtide_core.events.measurements import GpuMemoryChanged as GpuMemoryChanged
from ebbtide_core.events.measurements import InterferenceFound as InterferenceFound
from ebbtide_core.events.measurements import MemoryOverran as MemoryOverran
from ebbtide_core.events.measurements import RateMeasured as RateMeasured
from ebbtide_core.events.nodes import ForeignUseChanged as ForeignUseChanged
from ebbtide_core.events.nodes import GpuHealthChanged as GpuHealthChanged
from ebbtide_core.events.nodes import NodeDisconnected as NodeDisconnected
from ebbtide_core.events.nodes import NodeDrained as NodeDrained
from ebbtide_core.events.nodes import NodeExcluded as NodeExcluded
from ebbtide_core.events.nodes import NodeLost as NodeLost
from ebbtide_core.events.nodes import NodeResumed as NodeResumed
from ebbtide_core.events.sessions import SessionUnused as SessionUnused
from ebbtide_core.events.sweeps import RungReached as RungReached
from ebbtide_core.events.sweeps import TaskPromoted as TaskPromoted
from ebbtide_core.events.sweeps import TaskStopped as TaskStopped
from ebbtide_core.events.unsaved import WorkUnsaved as WorkUnsaved
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import (
    Allocation,
    AttemptRef,
    Checkpoint,
    ExitFacts,
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
    Task,
)

EVERY_NODE: Final = NodeId("")
"""Stands for all nodes of an attempt, in what is said of it as a whole."""


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
    """A job was accepted, perhaps as a task; ``operation_id`` makes a repeated submit find it, or its array, again.
    ``request`` is a digest of what was asked for then; empty: not known."""

    job: JobId
    spec: JobSpec
    user: str
    hold: bool = False
    operation_id: str = ""
    task: Task | None = None
    again_of: JobId | None = None
    request: str = ""


@frozen
class SuspendRequested(Event):
    """A user wants the job to step aside until they resume it."""

    job: JobId
    waited: str = ""


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
class JobMoved(Event):
    """A user wants the job in another pool; the one where it was is for its story."""

    job: JobId
    pool: str
    old_pool: str
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
    waited: str = ""


@frozen
class HoldRequested(Event):
    """A user does not want the job to start (again) until they release it; a running attempt goes on."""

    job: JobId
    waited: str = ""


@frozen
class ReleaseRequested(Event):
    """A user or the system's hold is over."""

    job: JobId


@frozen
class JobRetired(Event):
    """A finished job is forgotten; the journal keeps its story."""

    job: JobId


@frozen
class JobRemoved(Event):
    """A user removes a finished job: it is known no more, and nodes remove what they have of it."""

    job: JobId
    user: str = ""


# --- reports of nodes ------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class NodeRegistered(Event):
    """A node connected. ``known`` are the attempts that it has, ended ones included.

    With ``share_with_foreign``, shares of GPUs are offered beside processes of no job (see
    `ebbtide_core.resources.foreign_processes`). ``labels`` and ``taints`` are what its administrator says of it (see
    `ebbtide_core.model.constraints`).
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
    pool: str = DEFAULT_POOL
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()


@frozen
class AttemptStarted(Event):
    """The job's process runs; ``resumed_step`` is the step of the checkpoint that it was given.

    ``swaps`` is how often it has left its GPU for host memory before, and come back. ``node`` says whose part of an
    attempt on several nodes this is about, here and below; empty: all of it. ``port`` is where the ranks meet, if the
    node chose one. ``sharing`` is how it shares its GPU with others, if it does. ``edited`` are scripts that were
    changed since the job was submitted. ``leased``: it ends by itself when the master is not heard for too long.
    """

    job: JobId
    attempt: int
    pid: int
    resumed_step: int | None = None
    swaps: int = 0
    node: NodeId = EVERY_NODE
    port: int = 0
    sharing: Sharing | None = None
    edited: tuple[str, ...] = ()
    leased: bool = False


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

    With ``reserved_s`` it has to ask again once it has run for that long, all attempts together. ``waited`` is for what
    it had been waiting, in words, here and below.
    """

    job: JobId
    attempt: int
    allocation: Allocation
    reason: str
    sticky: bool = False
    reserved_s: float | None = None
    waited: str = ""


@frozen
class ReturnRequested(Event):
    """The attempt, which lies in host memory, is to go on on its GPU, which is free; else as `AttemptPlaced`."""

    job: JobId
    attempt: int
    reason: str
    sticky: bool = False
    reserved_s: float | None = None
    waited: str = ""


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
class RoomClaimed(Event):
    """What is being freed of ``allocation`` is kept for the job."""

    job: JobId
    allocation: Allocation
    reason: str
    waited: str = ""


@frozen
class ClaimDropped(Event):
    """The job no longer waits for the room that it had claimed."""

    job: JobId
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
    | JobMoved
    | DrillRequested
    | RequeueRequested
    | JobRequeued
    | DependencyFailed
    | ArrayChanged
    | RungReached
    | TaskPromoted
    | TaskStopped
    | CancelRequested
    | HoldRequested
    | ReleaseRequested
    | JobRetired
    | JobRemoved
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
    | WorkUnsaved
    | RateMeasured
    | InterferenceFound
    | RoomClaimed
    | ClaimDropped
    | GpuMemoryChanged
    | JobHeld
    | JobIdle
    | JobBusy
    | NodeExcluded
    | LogMatched
    | GpusExcluded
)
"""Events that are about one job."""

NodeEvent = (
    NodeRegistered
    | NodeDisconnected
    | NodeLost
    | GpuHealthChanged
    | ForeignUseChanged
    | NodeDrained
    | NodeResumed
    | NodeConfirmedDead
    | NodeRemoved
    | FenceFailed
    | StrayFound
    | StrayGone
    | StrayEndRequested
    | AttemptOrphaned
)
"""Events that are about one node."""

EVENT_TYPES: dict[str, type[Event]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}
"""Every event by the name under which journals have it."""
