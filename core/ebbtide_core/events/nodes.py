"""What happens to nodes, and that they are taken out of service, for all jobs or for one.

`ebbtide_core.events` has these, too.
"""

from typing import ClassVar

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import ForeignProcess, GpuId, JobId, NodeId


@frozen
class NodeDisconnected(Event):
    """The stream to a node broke; it may be back in a moment."""

    durable: ClassVar[bool] = False
    node: NodeId


@frozen
class NodeLost(Event):
    """A node has been silent for too long; what ran there may still run.

    ``acknowledged`` is when this master last told it that it was heard (Unix seconds; 0: this one never did).
    """

    node: NodeId
    silent_s: float
    acknowledged: float = 0.0


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


@frozen(kw_only=True)
class NodeDrained(Event):
    """Somebody takes the node out of service: nothing new starts there.

    ``deadline`` is the Unix time by which those that can go on elsewhere are to have left; None: they run to their
    end. With ``force``, all others are ended by then, too. Said again, it replaces what was said before.
    """

    node: NodeId
    user: str = ""
    reason: str = ""
    deadline: float | None = None
    force: bool = False


@frozen
class NodeResumed(Event):
    """Somebody puts the node into service again."""

    node: NodeId
    user: str = ""


@frozen
class NodeExcluded(Event):
    """The job is not to run on the node any more, and ``reason`` says why; until a user releases it."""

    job: JobId
    node: NodeId
    reason: str
