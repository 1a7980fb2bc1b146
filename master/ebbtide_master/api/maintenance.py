"""Nodes that are taken out of service and put back: the part of the clients' side that administrators use."""

from collections.abc import AsyncIterator
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.events import Event
from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import NodeId
from ebbtide_core.nodes.draining import prospects
from ebbtide_protos.v1 import client_pb2, client_pb2_grpc

from ebbtide_master.api.views import node_job_message, node_message
from ebbtide_master.changes import Changes
from ebbtide_master.clock import Clock
from ebbtide_master.loop import MasterLoop, Parts, RefusedError
from ebbtide_master.nodes.agents import Agents

MAX_REASON_LENGTH: Final = 200
MAX_USER_LENGTH: Final = limits.MAX_USER_LENGTH


class Maintenance(client_pb2_grpc.ClientServiceServicer):
    """`Clients` are this, too."""

    _loop: MasterLoop
    _agents: Agents
    _changes: Changes
    _clock: Clock

    async def DrainNode(self, request: client_pb2.DrainNodeRequest, context: Any) -> client_pb2.NodeReply:
        """Take a node out of service, and say what becomes of the jobs there."""
        check_words("--reason", request.reason, MAX_REASON_LENGTH)
        check_words("user", request.user, MAX_USER_LENGTH)
        deadline = self._deadline(request)
        if request.force and deadline is None:
            raise SpecError("--force", "needs a --deadline, or --now")
        node = NodeId(request.node)
        drained = e.NodeDrained(
            node=node, user=request.user, reason=request.reason, deadline=deadline, force=request.force
        )
        return await self._tell_node(node, drained)

    async def ResumeNode(self, request: client_pb2.NodeRequest, context: Any) -> client_pb2.NodeReply:
        """Put a node into service again. One that is in service already is what was wished for."""
        check_words("user", request.user, MAX_USER_LENGTH)
        return await self._tell_node(NodeId(request.node), e.NodeResumed(NodeId(request.node), request.user))

    async def WatchNode(self, request: client_pb2.NodeRequest, context: Any) -> AsyncIterator[client_pb2.NodeReply]:
        """A node now, and whenever who is there changes; ends when nobody is, or it is in service again."""
        node, told = NodeId(request.node), None
        with self._changes.watch() as watcher:
            while True:
                reply = await self._loop.ask_in_parts(lambda cluster: self._show_node(cluster, node))
                here = [job.job_id for job in reply.jobs]
                if told != here or not reply.node.HasField("drain"):
                    told = here
                    yield reply
                if not reply.jobs or not reply.node.HasField("drain"):
                    return
                await watcher.wait_changed()

    async def _tell_node(self, node: NodeId, fact: Event) -> client_pb2.NodeReply:
        return await self._loop.tell_in_parts(lambda _: [fact], lambda cluster: self._show_node(cluster, node))

    def _deadline(self, request: client_pb2.DrainNodeRequest) -> float | None:
        """Unix seconds."""
        if not request.HasField("deadline_s"):
            return None
        if not 0 <= request.deadline_s <= limits.MAX_TIME_LIMIT_S:
            raise SpecError("--deadline", f"is not between 0 and {limits.MAX_TIME_LIMIT_S:g} s from now")
        return self._clock.now() + request.deadline_s

    def _show_node(self, cluster: Cluster, id: NodeId) -> Parts[client_pb2.NodeReply]:
        now, node = self._clock.now(), cluster.state.nodes.get(id)
        if node is None:
            raise RefusedError(Refusal(RefusalKind.UNKNOWN, f"node {id} does not exist"))
        agents = self._agents
        message = node_message(node, cluster, now, agents.readings(id), agents.hello(id), agents.certificate_ends(id))
        reply = client_pb2.NodeReply(node=message)
        for found in prospects(cluster.state, node, now):
            reply.jobs.append(node_job_message(found))
            yield  # whether a job could run elsewhere may take some milliseconds to tell
        return reply


def check_words(field: str, text: str, limit: int) -> None:
    """Raise `SpecError` unless ``text`` is one that a person can be shown in a line."""
    if len(text) > limit or not text.isprintable():
        raise SpecError(field, f"is not a text of at most {limit} printable characters")
