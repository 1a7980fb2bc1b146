"""Defines what a job's spec is made of: identifiers, the unit of GPUs, and what users choose between.

`ebb submit` loads this, and not the facts that nodes report (`ebbtide_core.model.types`).
"""

from enum import Enum
from typing import TYPE_CHECKING, Final, NewType

if TYPE_CHECKING:  # most submits do without
    from fractions import Fraction

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
GpuId = NewType("GpuId", str)
"""A GPU's UUID."""

WHOLE: Final = 720_720
"""The number of parts of one GPU. Shares are whole numbers of parts, so that sums are exact: every 1/n up to 1/16 is
one."""


def parts(gpus: "Fraction | int") -> int:
    """Convert a count or share of GPUs to parts; raise ``ValueError`` if it is not a whole number of parts."""
    value = gpus * WHOLE
    if value.denominator != 1:
        raise ValueError(f"{gpus} is not a multiple of 1/{WHOLE} GPU")
    return value.numerator


def gpus(count: int) -> "Fraction":
    """Convert parts to a count or share of GPUs."""
    from fractions import Fraction

    return Fraction(count, WHOLE)


class JobClass(Enum):
    """The class of a job under the policies that preempt by class (FitGpp)."""

    TRIAL_AND_ERROR = "te"
    BEST_EFFORT = "be"


class JobKind(Enum):
    """What a job is for its user. Users do not wait for a batch job; they use the other kinds while they run."""

    BATCH = "batch"
    COMMAND = "command"
    SHELL = "shell"
    NOTEBOOK = "notebook"
    TENSORBOARD = "tensorboard"

    @property
    def is_session(self) -> bool:
        """Whether a user works in the job, so that no checkpoint has what is in its memory."""
        return self in (JobKind.SHELL, JobKind.NOTEBOOK, JobKind.TENSORBOARD)


class SuspendMode(Enum):
    """How a job gives up its GPUs."""

    CHECKPOINT = "checkpoint"
    SWAP = "swap"
    NONE = "none"


class LaunchMode(Enum):
    """The processes of an attempt: one, or one per GPU with torch.distributed's environment."""

    SINGLE = "single"
    DDP = "ddp"


class ExitZero(Enum):
    """What an exit 0 after a request to suspend means, if nothing else explains it."""

    SUSPENDED = "suspended"
    COMPLETED = "completed"


class SignalTarget(Enum):
    """Which of a job's processes get its stop signal."""

    AUTO = "auto"
    LEADER = "leader"
    ALL = "all"


class JobState(Enum):
    """The state of a job; docs/explanation/architecture.md draws the transitions."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    STOPPING = "STOPPING"
    UNREACHABLE = "UNREACHABLE"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    __hash__ = object.__hash__  # faster than the inherited Python function; every transition is looked up by it

    @property
    def finished(self) -> bool:
        """Whether no other state can follow."""
        return self in FINISHED


FINISHED: Final = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
