"""Defines the commands: everything that the core asks the world to do."""

from ebbtide_core.events import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import Allocation, JobId, NodeId


@frozen
class Record:
    """Write the event to the journal; no other command of the same batch may leave the master before it is durable."""

    event: Event


@frozen
class Launch:
    """Start an attempt: each of ``nodes`` starts its part of ``allocation``. Repeating the command changes nothing.

    With ``needs_checkpoint`` a node refuses if no checkpoint of the job verifies, because the job's progress would be
    lost. With ``source``, the first of ``nodes`` copies the newest checkpoint from that node first, or refuses.
    ``user`` submitted the job. The ranks of several nodes meet at ``address``, which is the first node's, and ``port``,
    which is 0 until that node has chosen one.
    """

    nodes: tuple[NodeId, ...]
    job: JobId
    attempt: int
    spec: JobSpec
    allocation: Allocation
    needs_checkpoint: bool
    address: str = ""
    port: int = 0
    source: NodeId | None = None
    user: str = ""


@frozen
class Stop:
    """End an attempt on ``nodes``: send its stop signal, wait for ``grace_s`` seconds, then send SIGKILL.

    If ``swaps`` is not None, move the attempt to host memory instead, and end it if that fails; ``swaps`` is how often
    it has left its GPU so far. If the job ``goes_on`` afterwards, the node may hold its next process ready.
    """

    nodes: tuple[NodeId, ...]
    job: JobId
    attempt: int
    grace_s: float
    swaps: int | None = None
    goes_on: bool = False


@frozen
class AnnounceEnd:
    """Announce to ``nodes`` that they are gone at Unix time ``until``; None: what they said themselves holds."""

    nodes: tuple[NodeId, ...]
    until: float | None


@frozen
class Resume:
    """Move an attempt, which has left its GPU ``swaps`` times, from host memory back to its GPU."""

    nodes: tuple[NodeId, ...]
    job: JobId
    attempt: int
    swaps: int


@frozen
class Forget:
    """Allow ``nodes`` to drop the attempt's state, because its end is in the journal."""

    nodes: tuple[NodeId, ...]
    job: JobId
    attempt: int


@frozen
class WakeAt:
    """Send the core a `SchedulingDue` at Unix time ``time``; a later command with an earlier time adds another one."""

    time: float


NodeOrder = Launch | Stop | Resume | Forget | AnnounceEnd
"""A command that nodes carry out."""
Command = Record | NodeOrder | WakeAt
