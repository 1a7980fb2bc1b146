"""What persons say of silent nodes, and of attempts that are set aside: a part of the clients' side."""

import math
from typing import Any

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.maintenance import MAX_USER_LENGTH, Maintenance, check_words
from ebbtide_master.loop import MasterLoop


class FencingMethods(Maintenance):
    """`Clients` are this, too."""

    _loop: MasterLoop

    async def ConfirmDead(self, request: client_pb2.NodeRequest, context: Any) -> client_pb2.NodeReply:
        """Take a person's word that nothing of what was on a node runs any more."""
        check_words("user", request.user, MAX_USER_LENGTH)
        node = NodeId(request.node)
        return await self._tell_node(node, e.NodeConfirmedDead(node=node, user=request.user))

    async def RemoveNode(self, request: client_pb2.NodeRequest, context: Any) -> client_pb2.RemoveNodeReply:
        """Forget a node that is lost and has nothing."""
        check_words("user", request.user, MAX_USER_LENGTH)
        removed = e.NodeRemoved(NodeId(request.node), request.user)
        return await self._loop.tell(lambda _: [removed], lambda _: client_pb2.RemoveNodeReply())

    async def EndStray(self, request: client_pb2.EndStrayRequest, context: Any) -> client_pb2.NodeReply:
        """End an attempt that is set aside."""
        check_words("user", request.user, MAX_USER_LENGTH)
        if not 0.0 <= request.grace_s <= limits.MAX_GRACE_S or math.isnan(request.grace_s):
            raise SpecError("--grace", f"is not between 0 and {limits.MAX_GRACE_S:g} s")
        fact = e.StrayEndRequested(
            node=NodeId(request.node),
            job=JobId(request.job_id),
            attempt=request.attempt,
            grace_s=request.grace_s,
            user=request.user,
        )
        return await self._tell_node(fact.node, fact)

    async def BelieveSilence(
        self, request: client_pb2.BelieveSilenceRequest, context: Any
    ) -> client_pb2.BelieveSilenceReply:
        """Take a person's word that nodes which fell silent together are not to be heard because of themselves."""
        check_words("user", request.user, MAX_USER_LENGTH)
        doubted: list[NodeId] = []

        def facts(cluster: Cluster) -> list[Event]:
            doubted.extend(sorted(cluster.state.doubted))
            return [e.SilenceBelieved(request.user)]

        return await self._loop.tell(facts, lambda _: client_pb2.BelieveSilenceReply(nodes=doubted))
