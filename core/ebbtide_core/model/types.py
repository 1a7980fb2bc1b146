"""Defines the basic types: states, allocations, and the facts that nodes report, beside those of a job's spec."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import Enum
from typing import Final

from ebbtide_core.model.choices import FINISHED as FINISHED
from ebbtide_core.model.choices import WHOLE as WHOLE
from ebbtide_core.model.choices import ExitZero as ExitZero
from ebbtide_core.model.choices import GpuId as GpuId
from ebbtide_core.model.choices import JobClass as JobClass
from ebbtide_core.model.choices import JobId as JobId
from ebbtide_core.model.choices import JobKind as JobKind
from ebbtide_core.model.choices import JobState as JobState
from ebbtide_core.model.choices import LaunchMode as LaunchMode
from ebbtide_core.model.choices import NodeId as NodeId
from ebbtide_core.model.choices import SignalTarget as SignalTarget
from ebbtide_core.model.choices import SuspendMode as SuspendMode
from ebbtide_core.model.choices import gpus as gpus
from ebbtide_core.model.choices import parts as parts
from ebbtide_core.model.frozen import frozen


class HeldBy(Enum):
    """Whether a user or the system holds a job."""

    USER = "user"
    SYSTEM = "system"


class StopCause(Enum):
    """Why an attempt is asked to end."""

    PREEMPTED = "preempted"
    SUSPENDED = "suspended"
    RESIZED = "resized"
    QUIESCED = "quiesced"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time limit"
    RESERVATION = "reservation over"
    BROKEN = "broken up"
    DRILLED = "drill"
    OVERRAN = "overran its GPU memory"
    EXPELLED = "expelled"
    INTERFERENCE = "interference"
    LOST_GPU = "GPU lost"
    IDLE = "idle"
    UNUSED = "unused"
    MOVED = "moved to another pool"
    DRAINED = "node drained"
    REQUEUED = "requeued"

    @property
    def final(self) -> bool:
        """Whether the job is over once the attempt has ended."""
        return self in (StopCause.CANCELLED, StopCause.TIME_LIMIT, StopCause.EXPELLED, StopCause.UNUSED)


SWAPPED_FOR: Final = frozenset(
    {
        StopCause.PREEMPTED,
        StopCause.SUSPENDED,
        StopCause.RESERVATION,
        StopCause.DRILLED,
        StopCause.OVERRAN,
        StopCause.INTERFERENCE,
        StopCause.IDLE,
        StopCause.REQUEUED,
    }
)
"""The causes for which a swappable attempt is swapped out; for any other cause it is ended."""


@frozen
class StartFacts:
    """The seconds that an attempt's first process took for imports, a checkpoint (None: it had none), and a step.

    ``step`` is the exact number of that first step; reports of progress skip steps. ``warm`` says that the process was
    held ready, with its imports done, before the attempt began. ``earlier_cpu_s`` is the CPU time of the commands of
    its script that had ended before that step.
    """

    warm: bool
    import_s: float
    load_s: float | None
    step_s: float
    step: int = 0
    earlier_cpu_s: float = 0.0


class RefusalCause(Enum):
    """Why a node did not start an attempt; STOPPED if the attempt had been asked to stop, whatever the node says."""

    NODE = "node"
    BAD_JOB = "bad job"
    NO_CHECKPOINT = "no checkpoint"
    NOT_MOVED = "checkpoint not moved"
    NO_PATH = "no such path"
    NO_ACCOUNT = "no such account"
    NO_STDIN = "no standard input"
    STOPPED = "asked to stop"


class Checkpointed(Enum):
    """Whether a job saved when it was asked to leave, as its supervisor decided; UNKNOWN if it is not certain."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Clue(Enum):
    """An observation during a request to leave that may explain why a job did not save."""

    CATCHES_TERM = "catches SIGTERM"
    CATCHES_USR1 = "catches SIGUSR1"
    CATCHES_USR2 = "catches SIGUSR2"
    NOT_ASKED = "not asked"
    LAUNCHER = "launcher"
    WORKERS_SIGNALLED = "data loaders signalled"


@frozen
class GpuSlice:
    """What an attempt holds of one GPU: a ``share`` in parts (see `WHOLE`), and memory in bytes."""

    gpu: GpuId
    share: int
    mem_bytes: int


@frozen
class NodeAllocation:
    """What an attempt holds on one node; ``share`` is the sum over its GPUs there, in parts."""

    node: NodeId
    gpus: tuple[GpuSlice, ...] = ()
    cpus: float = 0.0
    mem_bytes: int = 0
    share: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", sum([piece.share for piece in self.gpus]))


@frozen
class Allocation:
    """What an attempt holds; ``share`` is the sum over all its GPUs, in parts, and ``node_ids`` are its nodes."""

    nodes: tuple[NodeAllocation, ...]
    share: int = field(init=False, repr=False, compare=False)
    node_ids: tuple[NodeId, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Both are read very often, so they are computed once.
        object.__setattr__(self, "share", sum([node.share for node in self.nodes]))
        object.__setattr__(self, "node_ids", tuple([node.node for node in self.nodes]))

    @property
    def gpu_ids(self) -> tuple[GpuId, ...]:
        """All GPUs of the allocation."""
        return tuple([piece.gpu for node in self.nodes for piece in node.gpus])

    def __iter__(self) -> Iterator[NodeAllocation]:
        return iter(self.nodes)


class LinkKind(Enum):
    """How two GPUs of a node reach each other, the fastest first."""

    NVLINK = 1
    SWITCH = 2
    HOST_BRIDGE = 3
    NUMA_NODE = 4
    SYSTEM = 5


@frozen
class GpuLink:
    """The link of a GPU to another one, ``gpu``, of its node."""

    gpu: GpuId
    kind: LinkKind


@frozen
class ForeignProcess:
    """A process on a GPU that belongs to no job; ``mem_bytes`` of GPU memory is None if not known."""

    pid: int
    user: str
    command: str
    mem_bytes: int | None = None


@frozen
class GpuFacts:
    """One GPU as its node reported it; ``parent`` is the GPU of which it is a MIG slice, if it is one.

    With ``mps``, jobs that share the GPU use an MPS server. ``compute_capability`` is empty if not known.
    """

    gpu: GpuId
    index: int
    model: str
    mem_bytes: int
    healthy: bool = True
    unhealthy_reason: str = ""
    numa_node: int | None = None
    parent: GpuId | None = None
    links: tuple[GpuLink, ...] = ()
    mps: bool = False
    compute_capability: str = ""


@frozen
class Sharing:
    """How an attempt shares its GPU: ``way`` is "mps" or "time-slicing".

    ``limited_by`` is what limits it to its part of the GPU memory: "driver", "mps", "pytorch", or empty for nothing.
    """

    way: str
    limited_by: str = ""


@frozen
class Drain:
    """The drain of a node ``since`` a Unix time; the other fields are as in `ebbtide_core.events.nodes.NodeDrained`."""

    since: float
    user: str
    reason: str
    deadline: float | None
    force: bool


@frozen
class Loan:
    """A node is the cluster's until Unix time ``until``, and gone then. ``owner`` lends it; empty: nobody is named."""

    until: float
    owner: str = ""


@frozen
class AttemptRef:
    """The name of one launch of a job; ``attempt`` counts from 1 and is the fencing token."""

    job: JobId
    attempt: int


@frozen
class Task:
    """Which task of which array a job is.

    The array has ``size`` tasks. At most ``max_concurrent`` of them may be in the queue or have room at a time, with at
    most ``max_slots`` parts of GPUs together; 0 means no such limit. ``params`` are the values that the task tries.
    """

    array: JobId
    index: int
    size: int
    params: Mapping[str, str] = field(default_factory=dict)
    max_concurrent: int = 0
    max_slots: int = 0


@frozen
class ProgressFacts:
    """How far a job has come, in its own steps.

    ``metrics`` are further numbers, the newest of each; ``diverged`` names the metrics, or the loss, that are not
    finite numbers now (NaN, infinity).
    """

    step: int
    total: int | None = None
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    diverged: tuple[str, ...] = ()


@frozen
class CheckpointFacts:
    """A published checkpoint; ``step`` is None if the script that wrote it does not count steps."""

    step: int | None
    bytes: int
    path: str
    verified: bool


@frozen(kw_only=True)
class ExitFacts:
    """The facts of an attempt's end as the supervisor saw them; `ebbtide_core.job.outcome` decides what they mean.

    ``gpu_mem_peak_bytes`` is the most that the attempt used of one GPU, None if not known. ``lost_gpu`` is one of its
    GPUs that was gone when it ended, if any. ``lost_because`` says why it is not known how the attempt ended, if more
    is known. ``fenced`` says that it ended itself, because its lease was over. ``memory_failure`` says in words that
    host memory was used up, if so. ``clues`` are for `ebbtide_core.lifecycle.unsaved_work`. ``input_failure`` says in
    words that its standard input was lost before its end, so that it was killed, if so.
    """

    exit_code: int = 0
    signal: int = 0
    lost: bool = False
    stop_requested: bool = False
    delivered: bool = False
    caught: bool = False
    acknowledged: bool = False
    asked: bool = False
    killed: bool = False
    checkpointed: Checkpointed = Checkpointed.UNKNOWN
    checkpoint_s: float = 0.0
    ended_at: float = 0.0
    swap_failure: str = ""
    mps_failure: str = ""
    gpu_mem_peak_bytes: int | None = None
    out_of_memory: bool = False
    lost_gpu: str = ""
    lost_because: str = ""
    fenced: bool = False
    memory_failure: str = ""
    clues: tuple[Clue, ...] = ()
    input_failure: str = ""

    @property
    def code(self) -> int | None:
        """The exit code as a shell shows it, so 128 and the number of the signal; None if it is not known."""
        return None if self.lost else (128 + self.signal if self.signal else self.exit_code)
