"""Defines the events about nodes: what happens to them, and that all jobs, or one, must not use them any more.

They are part of `ebbtide_core.events`.
"""

from typing import ClassVar

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import ForeignProcess, GpuId, JobId, Loan, NodeId


@frozen
class NodeDisconnected(Event):
    """The stream to a node broke; the node may be back in a moment."""

    durable: ClassVar[bool] = False
    node: NodeId


@frozen
class NodeLost(Event):
    """A node has been silent for too long; attempts there may still run.

    ``acknowledged`` is the Unix time at which this master last told the node that it was heard; 0: it never did.
    """

    node: NodeId
    silent_s: float
    acknowledged: float = 0.0


@frozen
class GpuHealthChanged(Event):
    """A GPU became unusable, or usable again. If it is ``gone``, the work of the attempts on it is lost, too."""

    node: NodeId
    gpu: GpuId
    healthy: bool
    reason: str = ""
    gone: bool = False


@frozen
class ForeignUseChanged(Event):
    """The foreign processes on a GPU changed; ``processes`` are all that are there now."""

    node: NodeId
    gpu: GpuId
    processes: tuple[ForeignProcess, ...]


@frozen(kw_only=True)
class NodeDrained(Event):
    """A user takes the node out of service: nothing new starts there.

    ``deadline`` is the Unix time by which the jobs that can go on elsewhere must have left; None: they run to their
    end. With ``force``, all other jobs are ended by then, too. A later drain of the same node replaces this one.
    """

    node: NodeId
    user: str = ""
    reason: str = ""
    deadline: float | None = None
    force: bool = False


@frozen
class LoanChanged(Event):
    """The node is gone in ``ends_in_s`` seconds, by a user's word; None: when its agent says, if it does.

    All jobs leave it in time, and none starts there that could not.
    """

    node: NodeId
    ends_in_s: float | None
    user: str = ""


@frozen
class LoanAnnounced(Event):
    """The node's agent says another end than at its registration, as it was announced on its machine."""

    node: NodeId
    loan: Loan | None


@frozen
class NodeResumed(Event):
    """A user puts the node into service again."""

    node: NodeId
    user: str = ""


@frozen
class NodeExcluded(Event):
    """The job must not run on the node any more, until a user releases the job; ``reason`` says why."""

    job: JobId
    node: NodeId
    reason: str
