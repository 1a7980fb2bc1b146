"""Says what a job, an attempt and a GPU do, as ledger and timeline count it, and which events can change that.

docs/how-to/usage.md describes what is counted as what.
"""

from enum import Enum
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.admission.queues import Queue, QueueKey, by_arrival
from ebbtide_core.estimates.work import NOTHING_PROVED
from ebbtide_core.events import EVENT_TYPES
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.model.settings import DEFAULT_POOL, Settings
from ebbtide_core.model.types import GpuId
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.foreign_processes import stray_on
from ebbtide_core.state import ClusterState

_SAY_NOTHING: Final = (
    e.FirstStepMade, e.WorkResumed, e.WorkUnsaved, e.RateMeasured, e.InterferenceFound, e.ProgressReported,
)  # fmt: skip
KINDS: Final = tuple(name for name, kind in EVENT_TYPES.items() if kind.durable and not issubclass(kind, _SAY_NOTHING))
"""The names of the events that change what any of these does; other events can be left out."""


class _Nowhere(Queue):
    """A queue that keeps no jobs, because nothing is scheduled here."""

    def add(self, key: QueueKey, job: Job) -> None:
        """Do nothing."""

    def remove(self, key: QueueKey, job: Job) -> None:
        """Do nothing."""


class Life(Enum):
    """What a job does, whether it holds GPUs or not."""

    WAITING = "waiting"
    HELD = "held"
    SUSPENDED = "suspended"
    PLACED = "placed"


class Stage(Enum):
    """What an attempt that holds GPUs does."""

    STARTING = "starting"
    COMPUTING = "computing"
    LEAVING = "leaving"


class Rest(Enum):
    """The state of the part of a GPU that is not allocated."""

    IDLE = "idle"
    FOREIGN = "foreign"
    UNAVAILABLE = "unavailable"


REST_RULES: Final = 1
"""Counted up whenever `rest_of` or what leads to its being asked changes, so that histories have these spans anew."""


def state_to_fold_into() -> ClusterState:
    """Return the state of a cluster in which nothing has happened yet, and in which nothing will be scheduled."""
    return ClusterState({DEFAULT_POOL: _Nowhere(by_arrival)}, NOTHING_PROVED, Settings())


def life_of(job: Job) -> Life | None:
    """Return what ``job`` does; None if it is over."""
    if job.end is not None:
        return None
    if job.live is not None and not job.off_gpu:
        return Life.PLACED
    if job.next.resumes:
        return Life.SUSPENDED
    return Life.WAITING if job.held_by is None else Life.HELD


def stage_of(attempt: Attempt) -> Stage:
    """Return what ``attempt``, which holds GPUs, does."""
    if attempt.stop is not None or attempt.end is not None:
        return Stage.LEAVING
    return Stage.STARTING if attempt.started is None else Stage.COMPUTING


def rest_of(node: Node, gpu: GpuId) -> Rest | None:
    """Return the state of what is not allocated of ``gpu``; None if the node has no such GPU."""
    facts = node.gpus.get(gpu)
    if facts is None:
        return None
    if node.lost or node.drain is not None or not facts.healthy or stray_on(node, gpu) is not None:
        return Rest.UNAVAILABLE
    return Rest.FOREIGN if gpu in node.foreign else Rest.IDLE
