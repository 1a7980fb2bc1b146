"""Defines the events: facts in the past tense, and the only input of the core.

A durable event is in the journal before anything that follows from it leaves the master; the cluster's state is the
fold of the durable events. The core's own decisions (`AttemptPlaced`, `StopRequested`, `RoomClaimed`, …) are events,
too, so that recovery never runs a policy again.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Final

from ebbtide_core.events.admin import ClockSetBack as ClockSetBack
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
from ebbtide_core.events.halving import RungReached as RungReached
from ebbtide_core.events.halving import TaskPromoted as TaskPromoted
from ebbtide_core.events.halving import TaskStopped as TaskStopped
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
from ebbtide_core.events.nodes import LoanAnnounced as LoanAnnounced
from ebbtide_core.events.nodes import LoanChanged as LoanChanged
from ebbtide_core.events.nodes import NodeDisconnected as NodeDisconnected
from ebbtide_core.events.nodes import NodeDrained as NodeDrained
from ebbtide_core.events.nodes import NodeExcluded as NodeExcluded
from ebbtide_core.events.nodes import NodeLost as NodeLost
from ebbtide_core.events.nodes import NodeResumed as NodeResumed
from ebbtide_core.events.sessions import SessionUnused as SessionUnused
from ebbtide_core.events.unsaved import WorkUnsaved as WorkUnsaved
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import (
    Allocation,
    AttemptRef,
    CheckpointFacts,
    ExitFacts,
    GpuFacts,
    GpuId,
    HeldBy,
    JobId,
    Loan,
    NodeId,
    ProgressFacts,
    RefusalCause,
    Sharing,
    StartFacts,
    StopCause,
    Task,
)

EVERY_NODE: Final = NodeId("")
"""The ``node`` of an event about an attempt as a whole, on all of its nodes."""


# --- the master's own life -------------------------------------------------------------------------------------------


@frozen
class MasterStarted(Event):
    """A master took over. No node is connected yet, and nothing is placed before the nodes are heard again."""

    epoch: int


@frozen
class Quiesced(Event):
    """Every attempt is to stop, and none is to start; ``kill`` leaves out the grace periods."""

    kill: bool = False


@frozen
class Unquiesced(Event):
    """Jobs may start again."""


@frozen
class SchedulingDue(Event):
    """A scheduling pass is due, because something changed or a time came that the core had asked for."""

    durable: ClassVar[bool] = False


# --- requests of users -----------------------------------------------------------------------------------------------


@frozen
class JobSubmitted(Event):
    """A job was accepted, perhaps as a task of an array.

    With its ``operation_id`` a repeated submit finds the job, or its array, again. ``request`` is a digest of what that
    submit asked for; empty if not known. ``again_of`` is the job that `ebb requeue` submitted again as this one.
    """

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
    """A user wants the job to step aside until a user resumes it. ``waited`` is what it was waiting for, in words."""

    job: JobId
    waited: str = ""


@frozen
class ResumeRequested(Event):
    """A user lets a suspended job go on."""

    job: JobId


@frozen
class ResizeRequested(Event):
    """A user gives the job another range of GPUs; both bounds are in parts."""

    job: JobId
    gpus_min: int
    gpus_max: int


@frozen
class JobChanged(Event):
    """A user gave the job another priority or weight, or both; the old values are kept for the job's story."""

    job: JobId
    priority: int
    weight: float
    old_priority: int
    old_weight: float
    user: str = ""


@frozen
class JobMoved(Event):
    """A user wants the job in another pool; ``old_pool`` is kept for the job's story."""

    job: JobId
    pool: str
    old_pool: str
    user: str = ""


@frozen
class DrillRequested(Event):
    """A user wants the running job to step aside and come back at once, to see whether it can."""

    job: JobId


@frozen
class CancelRequested(Event):
    """A user cancels the job; ``now`` leaves out the grace period."""

    job: JobId
    now: bool = False
    waited: str = ""


@frozen
class HoldRequested(Event):
    """A user holds the job: it does not start again until a user releases it; a running attempt goes on."""

    job: JobId
    waited: str = ""


@frozen
class ReleaseRequested(Event):
    """A user ends a hold, of a user or of the system."""

    job: JobId


@frozen
class JobRetired(Event):
    """A finished job is forgotten; the journal keeps its story."""

    job: JobId


@frozen
class JobRemoved(Event):
    """A user removes a finished job: the cluster forgets it, and nodes remove its files."""

    job: JobId
    user: str = ""


# --- reports of nodes ------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class NodeRegistered(Event):
    """A node connected. ``known`` are the attempts that it has, ended ones included.

    With ``share_with_foreign``, the node offers shares of GPUs that foreign processes use, too (see
    `ebbtide_core.resources.foreign_processes`). Its administrator sets its ``labels`` and ``taints`` (see
    `ebbtide_core.model.constraints`). ``loan`` is what its agent knows of its end; None: it stays.
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
    loan: Loan | None = None


@frozen
class AttemptStarted(Event):
    """The attempt's process runs; ``resumed_step`` is the step of the checkpoint that it was given.

    ``swaps`` is how often the attempt has left its GPU for host memory and come back. ``node`` is the node whose part
    of an attempt on several nodes this event, like those below, is about; empty: the whole attempt. ``port`` is where
    the ranks meet, if the node chose one. ``sharing`` is how the attempt shares its GPU, None if it does not.
    ``edited`` are scripts that were changed since the job was submitted. A ``leased`` attempt ends by itself when its
    node does not hear the master for too long.
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
    """The attempt has made its first step; ``start`` says how long that took."""

    job: JobId
    attempt: int
    start: StartFacts


@frozen
class ProgressReported(Event):
    """The job reported its progress."""

    durable: ClassVar[bool] = False
    job: JobId
    attempt: int
    progress: ProgressFacts


@frozen
class CheckpointPublished(Event):
    """A checkpoint of the job is complete on disk."""

    job: JobId
    attempt: int
    checkpoint: CheckpointFacts


@frozen
class AttemptExited(Event):
    """No process of the attempt is left. With ``freed``, its GPUs are free as well, and no `AttemptFreed` follows."""

    job: JobId
    attempt: int
    exit: ExitFacts
    progress: ProgressFacts | None = None
    freed: bool = False
    node: NodeId = EVERY_NODE


@frozen
class AttemptFreed(Event):
    """The attempt's GPUs are free again, except ``dirty_gpus``; ``dirty_reasons`` says why, one text for each."""

    job: JobId
    attempt: int
    dirty_gpus: tuple[GpuId, ...] = ()
    node: NodeId = EVERY_NODE
    dirty_reasons: tuple[str, ...] = ()

    def why_dirty(self, gpu: GpuId) -> str:
        """Return why ``gpu``, one of ``dirty_gpus``, is not free, in words."""
        known = dict(zip(self.dirty_gpus, self.dirty_reasons, strict=False))
        return known.get(gpu) or "its memory was not released"


@frozen
class AttemptSwapped(Event):
    """The attempt was moved to host memory for the ``swaps``-th time, in ``seconds``, and its GPU is free.

    After a `ReturnRequested` this event means that the attempt could not come back to its GPU; ``note`` says why.
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

    ``reserved_s`` is the running time, in seconds over all attempts, at which its reservation ends; None: it has none.
    ``waited`` is what the job had been waiting for, in words, here and below.
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
    """The attempt, which is in host memory, may return to its GPU, which is free; fields as in `AttemptPlaced`."""

    job: JobId
    attempt: int
    reason: str
    sticky: bool = False
    reserved_s: float | None = None
    waited: str = ""


@frozen
class StopRequested(Event):
    """The attempt is asked to end within ``grace_s`` seconds; ``for_job`` gets its room, if it is not None."""

    job: JobId
    attempt: int
    cause: StopCause
    grace_s: float
    reason: str
    for_job: JobId | None = None


@frozen
class WorkResumed(Event):
    """The job works again after a suspension: ``step`` is the first that it reported since."""

    job: JobId
    attempt: int
    step: int


@frozen
class RoomClaimed(Event):
    """``allocation``, some of which is still being freed, is kept for the job."""

    job: JobId
    allocation: Allocation
    reason: str
    waited: str = ""


@frozen
class ClaimDropped(Event):
    """The job gives up the room that it had claimed."""

    job: JobId
    reason: str


@frozen
class JobHeld(Event):
    """The system holds the job: it starts again only after a user releases it."""

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
"""The events about one job."""

NodeEvent = (
    NodeRegistered
    | NodeDisconnected
    | NodeLost
    | GpuHealthChanged
    | ForeignUseChanged
    | LoanAnnounced
    | LoanChanged
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
"""The events about one node."""

EVENT_TYPES: dict[str, type[Event]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}
"""Every event type by its name in the journal."""
