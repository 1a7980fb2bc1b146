"""What is decided about nodes that are silent, and about attempts that the books do not have as running.

`ebbtide_core.events` has these, too.
"""

from enum import Enum

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import GpuId, JobId, NodeId


class StrayKind(Enum):
    """Why an attempt on a node is a stray: the journal never knew of it, or it counts as over."""

    UNKNOWN = "unknown"
    OVER = "over"


@frozen(kw_only=True)
class NodeConfirmedDead(Event):
    """Nothing of what was on the node runs any more: somebody says so, or the fence hook, which made sure of it."""

    node: NodeId
    user: str = ""
    by_hook: bool = False


@frozen
class NodeRemoved(Event):
    """Somebody removes a lost node that has nothing: it is known no more, until it registers again."""

    node: NodeId
    user: str = ""


@frozen
class FenceFailed(Event):
    """The fence hook did not prove that the node is dead; it is tried again after ``again_s`` seconds of silence."""

    node: NodeId
    reason: str
    again_s: float


@frozen
class SilenceDoubted(Event):
    """So many of the nodes went silent together that it is the master that may be cut off: nothing is made of it."""

    nodes: tuple[NodeId, ...]
    of: int


@frozen
class SilenceBelieved(Event):
    """Nodes that are silent count as silent by themselves again; ``user`` said so, or enough are back."""

    user: str = ""


@frozen(kw_only=True)
class StrayFound(Event):
    """A node has an attempt that it should not have: it is set aside, and its ``gpus`` are not given away.

    One that is ``over`` holds nothing any more; then only its number is taken. An ``orphan`` has processes on the node,
    and the agent has no record of it.
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
    """Nothing of the stray is left, but for ``dirty_gpus``, and ``dirty_reasons`` says why each is not free.

    ``asked``: it was asked to end.
    """

    node: NodeId
    job: JobId
    attempt: int
    asked: bool = False
    dirty_gpus: tuple[GpuId, ...] = ()
    dirty_reasons: tuple[str, ...] = ()


@frozen(kw_only=True)
class StrayEndRequested(Event):
    """Somebody wants the stray to end within ``grace_s``."""

    node: NodeId
    job: JobId
    attempt: int
    grace_s: float
    user: str = ""


@frozen
class AttemptOrphaned(Event):
    """The node has processes of the attempt, and its agent lost all that it knew of it: it cannot tell how it ends."""

    node: NodeId
    job: JobId
    attempt: int
