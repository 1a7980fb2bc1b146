"""Defines the events about silent nodes, and about strays: attempts that a node has and the books do not.

They are part of `ebbtide_core.events`.
"""

from enum import Enum

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import GpuId, JobId, NodeId


class StrayKind(Enum):
    """Why an attempt on a node is a stray: the journal does not know it, or it counts as over."""

    UNKNOWN = "unknown"
    OVER = "over"


@frozen(kw_only=True)
class NodeConfirmedDead(Event):
    """Nothing runs on the node any more: ``user`` confirms it, or the fence hook has proven it (``by_hook``)."""

    node: NodeId
    user: str = ""
    by_hook: bool = False


@frozen
class NodeRemoved(Event):
    """A user removes a lost node that has no attempts: the cluster forgets it until it registers again."""

    node: NodeId
    user: str = ""


@frozen
class FenceFailed(Event):
    """The fence hook did not prove that the node is dead; it runs again after ``again_s`` seconds of silence."""

    node: NodeId
    reason: str
    again_s: float


@frozen
class SilenceDoubted(Event):
    """``nodes``, out of ``of`` known ones, fell silent together: the master may be the one that is cut off.

    Until `SilenceBelieved` no lease counts as over, and none of ``nodes`` is fenced.
    """

    nodes: tuple[NodeId, ...]
    of: int


@frozen
class SilenceBelieved(Event):
    """Silent nodes count as silent by themselves again, because ``user`` said so, or because enough nodes are back."""

    user: str = ""


@frozen(kw_only=True)
class StrayFound(Event):
    """A node has an attempt that it should not have: the attempt is set aside, and no job gets its ``gpus``.

    A stray that is ``over`` holds nothing any more; then no new attempt gets its number. An ``orphan`` has processes on
    the node, and the agent has no record of it.
    """

    node: NodeId
    job: JobId
    attempt: int
    kind: StrayKind
    gpus: tuple[GpuId, ...] = ()
    over: bool = False
    orphan: bool = False


@frozen(kw_only=True)
class StrayGone(Event):
    """Nothing of the stray is left, except on ``dirty_gpus``; ``dirty_reasons`` says why each is not free.

    ``asked`` says whether the stray was asked to end.
    """

    node: NodeId
    job: JobId
    attempt: int
    asked: bool = False
    dirty_gpus: tuple[GpuId, ...] = ()
    dirty_reasons: tuple[str, ...] = ()


@frozen(kw_only=True)
class StrayEndRequested(Event):
    """A user wants the stray to end within ``grace_s`` seconds."""

    node: NodeId
    job: JobId
    attempt: int
    grace_s: float
    user: str = ""


@frozen
class AttemptOrphaned(Event):
    """The node has processes of the attempt, but its agent lost its record, and cannot tell how the attempt ends."""

    node: NodeId
    job: JobId
    attempt: int
