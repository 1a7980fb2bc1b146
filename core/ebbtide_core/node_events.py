"""Nodes that are taken out of service, for all jobs or for one. `ebbtide_core.events` has these, too."""

from ebbtide_core.event import Event
from ebbtide_core.frozen import frozen
from ebbtide_core.model import JobId, NodeId


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
