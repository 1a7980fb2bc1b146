"""Opens channels from clients to processes and files on a job's node."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.job.gang import has_ended, has_started
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.lifecycle.forgetting import unknown_job
from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import JobId, JobKind, NodeId
from ebbtide_protos.v1 import channel_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.loop import RefusedError
from ebbtide_master.nodes.channels import Channel
from ebbtide_master.nodes.kept_logs import LogUnavailableError

OPEN_TIMEOUT_S: Final = 10.0
HANG_UP_TIMEOUT_S: Final = 60.0
"""Seconds that a client has to read the last window and to hang up."""
MAX_RUN_BYTES: Final = limits.MAX_RUN_BYTES
"""Bytes of a command that is started inside a job, including its environment."""


class ChannelService:
    """Passes messages between the two ends of a channel."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop
        self._sessions = master.sessions

    async def Connect(
        self, request_iterator: AsyncIterator[channel_pb2.ChannelInput], context: Any
    ) -> AsyncIterator[channel_pb2.ChannelOutput]:
        """Open the channel that the first message requests, and pass messages both ways until the node closes it."""
        channel = await self._open(await _wanted(request_iterator))
        reading = asyncio.create_task(_read(channel, request_iterator))
        try:
            while True:
                message = await channel.next_out()
                yield message
                if message.WhichOneof("body") == "closed":
                    # A client that still sends when its call ends would lose what it has not read yet.
                    await asyncio.wait([reading], timeout=HANG_UP_TIMEOUT_S)
                    return
        finally:
            reading.cancel()
            self._sessions.channels.leave(channel)

    async def _open(self, want: channel_pb2.OpenChannel) -> Channel:
        node = await self._loop.ask(lambda cluster: _checked(cluster, want))
        session = self._sessions.session(node)
        if session is None:
            raise LogUnavailableError(f"node {node} is not connected")
        return self._sessions.channels.open(session, node, want)


async def _wanted(stream: AsyncIterator[channel_pb2.ChannelInput]) -> channel_pb2.OpenChannel:
    """Return the request in the first message. Raises `SpecError` for one that is missing or invalid."""
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            first = await anext(stream)
    except (TimeoutError, StopAsyncIteration):
        raise SpecError("channel", f"no request came within {OPEN_TIMEOUT_S:g} s") from None
    want = first.open
    if first.WhichOneof("body") != "open" or want.WhichOneof("want") is None:
        raise SpecError("channel", "the first message must say what is wanted")
    if want.run.ByteSize() > MAX_RUN_BYTES:
        raise SpecError("command", f"{want.run.ByteSize()} bytes are over the limit of {MAX_RUN_BYTES}")
    if len(want.tree.paths) > limits.MAX_TREE_PATHS:
        raise SpecError("paths", f"{len(want.tree.paths)} are more than the limit of {limits.MAX_TREE_PATHS}")
    if want.WhichOneof("want") == "port" and want.port > 65535:
        raise SpecError("port", f"{want.port} is not a port from 1 to 65535")
    return want


async def _read(channel: Channel, stream: AsyncIterator[channel_pb2.ChannelInput]) -> None:
    async for message in stream:
        channel.pass_in(message)


def _checked(cluster: Cluster, want: channel_pb2.OpenChannel) -> NodeId:
    """Return the node for the request, and set the request's attempt. Raises `RefusedError` if there is none."""
    job = cluster.job(JobId(want.job_id))
    if job is None:
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, unknown_job(cluster.state, want.job_id)))
    if want.WhichOneof("want") == "tree":
        attempt = _last(job)
        want.tree.workdir = job.spec.workdir
    else:
        attempt = _running(job)
    if want.WhichOneof("want") == "session" and job.spec.kind is not JobKind.SHELL:
        raise _conflict(f"job {job.id} is no shell: 'ebb exec {job.id}' starts one in it")
    if want.WhichOneof("want") == "input" and not job.spec.stdin:
        raise _conflict(f"job {job.id} has no standard input: only what is piped into 'ebb run' has")
    want.attempt = attempt.number
    return _node(job, attempt, want)


def _last(job: Job) -> Attempt:
    if job.attempt is None:
        raise _conflict(f"job {job.id} has not run yet")
    return job.attempt


def _running(job: Job) -> Attempt:
    attempt = job.live
    if attempt is None or attempt.started is None:
        raise _conflict(f"job {job.id} does not run: it is {job.state.name}")
    return attempt


def _node(job: Job, attempt: Attempt, want: channel_pb2.OpenChannel) -> NodeId:
    nodes = attempt.allocation.node_ids
    node = NodeId(want.node) if want.node else nodes[0]
    if node not in nodes:
        where = f"is on node {', '.join(nodes)}, not on {want.node[: limits.MAX_NODE_NAME_LENGTH]!r}"
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, f"job {job.id} {where}"))
    if want.WhichOneof("want") != "tree" and (not has_started(attempt, node) or has_ended(attempt, node)):
        raise _conflict(f"job {job.id} does not run on node {node}")
    return node


def _conflict(message: str) -> RefusedError:
    return RefusedError(Refusal(RefusalKind.CONFLICT, message))
