"""Reads the logs of a job's attempts from the nodes that have them (``ebb logs``)."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.job.gang import has_ended, has_started
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.model import limits
from ebbtide_core.model.types import LaunchMode, NodeId
from ebbtide_protos.v1 import agent_pb2, client_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.named_jobs import job_named
from ebbtide_master.loop import RefusedError
from ebbtide_master.nodes.kept_logs import LogUnavailableError

EARLIER_ATTEMPTS: Final = 100
"""Attempts, at most, in which the last lines are looked for."""


class LogService:
    """Passes the logs that nodes read on to clients."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop
        self._changes = master.changes
        self._sessions = master.sessions

    async def ReadLogs(self, request: client_pb2.ReadLogsRequest, context: Any) -> AsyncIterator[client_pb2.LogChunk]:
        """Send the logs of one attempt, or of all in order; with ``follow``, until the job is finished.

        Of an attempt on several nodes, the log of one node is sent; with ``rank``, only the output of that rank.
        """
        number, offset = await self._log_begin(request)
        with self._changes.watch() as watcher:
            while True:
                attempt, node, finished = await self._loop.ask(lambda c: attempt_of(c, request, number))  # noqa: B023
                if attempt is not None and (node is None or has_started(attempt, node) or has_ended(attempt, node)):
                    if node is not None:
                        async for chunk in self._attempt_log(request, attempt, node, offset):
                            yield chunk
                    if request.attempt:
                        return
                    number, offset = number + 1, 0
                elif request.follow and not finished:
                    await watcher.wait_changed()
                elif request.attempt and attempt is None:
                    message = f"job {request.job_id} has no attempt {request.attempt}"
                    raise RefusedError(Refusal(RefusalKind.UNKNOWN, message))
                else:
                    return

    async def _attempt_log(
        self, request: client_pb2.ReadLogsRequest, attempt: Attempt, node: NodeId, offset: int
    ) -> AsyncIterator[client_pb2.LogChunk]:
        while True:
            order = window_of(request, attempt, offset=offset, max_bytes=limits.LOG_WINDOW_BYTES, wait=request.follow)
            try:
                window = await self._sessions.read_log(node, order)
            except LogUnavailableError:
                if offset or await self._loop.ask(lambda cluster: node in cluster.state.nodes):
                    raise
                words = f"[the log of attempt {attempt.number} went with node {node}]\n".encode()
                yield client_pb2.LogChunk(attempt=attempt.number, data=words)
                return
            if window.error:
                if not has_started(attempt, node):  # the attempt never ran there, and so printed nothing
                    return
                raise LogUnavailableError(f"log of job {request.job_id}: {window.error}")
            after = max(window.next, offset + len(window.data))
            if window.data:
                yield client_pb2.LogChunk(attempt=attempt.number, data=window.data, offset=offset, next=after)
            offset = after
            if window.end or not (window.data or request.follow):
                return

    # --- where to begin ---

    async def _log_begin(self, request: client_pb2.ReadLogsRequest) -> tuple[int, int]:
        """Return the attempt to begin with, and the offset in its log."""
        begin = (request.attempt or 1, 0)
        if request.since:
            begin = await self._begin_since(request)
        if request.tail:
            begin = max(begin, await self._begin_of_tail(request))
        return begin

    async def _begin_since(self, request: client_pb2.ReadLogsRequest) -> tuple[int, int]:
        """Return where the output since ``request.since`` begins, in the first attempt that had not ended before."""
        number = request.attempt or 1
        while True:
            attempt, node, _ = await self._loop.ask(partial(attempt_of, request=request, number=number))
            if attempt is None or request.attempt:
                break
            if attempt.end is None or attempt.end.at >= request.since:
                break
            number += 1
        if attempt is None or node is None or not has_started(attempt, node):
            return number, 0
        return number, (await self._edge_of(request, attempt, node)).next

    async def _begin_of_tail(self, request: client_pb2.ReadLogsRequest) -> tuple[int, int]:
        """Return where the last ``request.tail`` lines begin, in the last attempt or, as far as readable, before it."""
        last = request.attempt or await self._loop.ask(lambda cluster: len(job_named(cluster, request.job_id).attempts))
        begin, wanted = (last or 1, 0), request.tail
        for number in range(last, (last - 1) if request.attempt else max(0, last - EARLIER_ATTEMPTS), -1):
            attempt, node, _ = await self._loop.ask(partial(attempt_of, request=request, number=number))
            if attempt is None or node is None or not has_started(attempt, node):
                continue
            try:
                edge = await self._edge_of(request, attempt, node, wanted)
            except LogUnavailableError:
                if number == last:
                    raise
                break
            begin, wanted = (number, edge.next), wanted - edge.lines
            if wanted <= 0:
                break
        return begin

    async def _edge_of(
        self, request: client_pb2.ReadLogsRequest, attempt: Attempt, node: NodeId, tail: int = 0
    ) -> agent_pb2.LogData:
        """Ask ``node`` where the last ``tail`` lines begin, or without ``tail`` the output since ``request.since``."""
        asked = {"tail": tail} if tail else {"since": request.since}
        answer = await self._sessions.read_log(node, window_of(request, attempt, **asked))
        if answer.error:
            raise LogUnavailableError(f"log of job {request.job_id}: {answer.error}")
        return answer


def window_of(request: client_pb2.ReadLogsRequest, attempt: Attempt, **asked: Any) -> agent_pb2.ReadLog:
    """Return the request to a node for a window of the attempt's log."""
    rank = request.rank if request.HasField("rank") else None
    return agent_pb2.ReadLog(job_id=request.job_id, attempt=attempt.number, rank=rank, **asked)


def attempt_of(
    cluster: Cluster, request: client_pb2.ReadLogsRequest, number: int
) -> tuple[Attempt | None, NodeId | None, bool]:
    """Return the job's attempt ``number`` or None, the node to ask for its log, and whether the job is finished."""
    job = job_named(cluster, request.job_id)
    attempt = job.attempts[number - 1] if number <= len(job.attempts) else None
    return attempt, node_of_part(request, job, attempt) if attempt is not None else None, job.state.finished


def node_of_part(request: client_pb2.ReadLogsRequest, job: Job, attempt: Attempt) -> NodeId | None:
    """Return the node whose log is requested, or None if ``attempt`` had no such part.

    Raises `RefusedError` instead of returning None if the request names the attempt.
    """
    nodes = attempt.allocation.node_ids
    found = NodeId(request.node) if request.node in nodes else None if request.node else nodes[0]
    if request.HasField("rank"):
        of_rank = _node_of_rank(request.rank, job, attempt)
        found = of_rank if not request.node or of_rank == request.node else None
    if found is None and request.attempt:
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, _why_not(request, job, attempt)))
    return found


def _node_of_rank(rank: int, job: Job, attempt: Attempt) -> NodeId | None:
    """Return the node of ``rank``: ranks count through the nodes, one per GPU for a ``ddp`` job, else one per node."""
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
