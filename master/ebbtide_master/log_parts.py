"""Which node has the part of an attempt's output that somebody asks for."""

from ebbtide_core.cluster import Refusal, RefusalKind
from ebbtide_core.job import Attempt, Job
from ebbtide_core.model import LaunchMode, NodeId
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.loop import RefusedError


def node_of_part(request: client_pb2.ReadLogsRequest, job: Job, attempt: Attempt) -> NodeId | None:
    """The node whose part is asked for; None if ``attempt`` had none there, or `RefusedError` if that was named."""
    nodes = attempt.allocation.node_ids
    found = NodeId(request.node) if request.node in nodes else None if request.node else nodes[0]
    if request.HasField("rank"):
        of_rank = _node_of_rank(request.rank, job, attempt)
        found = of_rank if not request.node or of_rank == request.node else None
    if found is None and request.attempt:
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, _why_not(request, job, attempt)))
    return found


def _node_of_rank(rank: int, job: Job, attempt: Attempt) -> NodeId | None:
    """Ranks count on from node to node: of a ``ddp`` job one for each GPU, else one for each node."""
    for piece in attempt.allocation:
        here = max(1, len(piece.gpus)) if job.spec.launch is LaunchMode.DDP else 1
        if rank < here:
            return piece.node
        rank -= here
    return None


def _why_not(request: client_pb2.ReadLogsRequest, job: Job, attempt: Attempt) -> str:
    if request.node and not request.HasField("rank"):
        nodes = ", ".join(attempt.allocation.node_ids)
        return f"attempt {attempt.number} of job {job.id} was on node {nodes}, not on {request.node!r}"
    where = f" on node {request.node!r}" if request.node else ""
    return f"attempt {attempt.number} of job {job.id} had no rank {request.rank}{where}"
