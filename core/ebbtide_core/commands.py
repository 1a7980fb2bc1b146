"""Requests, in the imperative: all that the core asks of the world."""

from ebbtide_core.events import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import Allocation, JobId, NodeId


@frozen
class Record:
    """Journal the event; nothing else of the same batch may leave before it is durable."""

    event: Event


@frozen
class Launch:
    """Start an attempt: each of ``nodes`` its part of ``allocation``; asking again changes nothing.

    With ``needs_checkpoint`` a node refuses if no checkpoint of the job verifies: it had progress that would be lost.
    With ``source``, the first of ``nodes`` copies the newest checkpoint from that node before, or refuses.
    It is for ``user`` that it is started, who submitted it.
    The ranks of several nodes meet at ``address``, the first node's, and ``port``, which is 0 until it has chosen one.
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
    """End an attempt on ``nodes``: its stop signal, the grace period, SIGKILL.

    With ``swaps``, how often it has left its GPU so far, move it to host memory instead, and end it if that fails.
    If the job ``goes_on`` afterwards, its next process may be held ready.
    """

    nodes: tuple[NodeId, ...]
    job: JobId
    attempt: int
    grace_s: float
    swaps: int | None = None
    goes_on: bool = False


@frozen
class Resume:
    """Move an attempt, which has left its GPU ``swaps`` times, back to it."""

    nodes: tuple[NodeId, ...]
    job: JobId
    attempt: int
    swaps: int


@frozen
class Forget:
    """The attempt's end is recorded; ``nodes`` may drop its state."""

    nodes: tuple[NodeId, ...]
    job: JobId
    attempt: int


@frozen
class WakeAt:
    """Handle `SchedulingDue` at ``time``; a later request for an earlier time adds to it."""

    time: float


Command = Record | Launch | Stop | Resume | Forget | WakeAt
