"""Lets nodes join with an invitation, and revokes their certificates."""

import logging
from typing import TYPE_CHECKING, Any

from ebbtide_core.cluster import Refusal, RefusalKind
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import NodeId
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.identity.caller import caller
from ebbtide_master.loop import RefusedError

if TYPE_CHECKING:  # this import needs the library for certificates, which most masters do without
    from ebbtide_master.tls.listeners import PublicEndpoint

log = logging.getLogger(__name__)


class MembershipService:
    """Invites nodes, signs their certificates, and revokes them."""

    def __init__(self, master: Context) -> None:
        self._store = master.store
        self._sessions = master.sessions
        self._front = master.front

    async def InviteNode(self, request: client_pb2.InviteNodeRequest, context: Any) -> client_pb2.InviteNodeReply:
        """Create an invitation that lets one node join, once, until it expires."""
        front = self._reached()
        try:
            address = front.address(request.host)
        except ValueError as error:
            raise SpecError("--host", str(error)) from None
        try:
            secret, expires = await front.enrolment.invite(request.node, request.expires_s)
        except ValueError as error:
            raise SpecError("invitation", str(error)) from None
        log.info("node=%s invited by=%s", request.node or "any", caller().user)
        ca = front.enrolment.authority.pem
        return client_pb2.InviteNodeReply(address=address, secret=secret, ca=ca, expires=expires)

    async def Join(self, request: client_pb2.JoinRequest, context: Any) -> client_pb2.JoinReply:
        """Sign the key of a node that has the secret of an invitation."""
        front = self._reached()
        try:
            certificate = await front.enrolment.join(request.secret, request.node, request.csr)
        except ValueError as error:
            raise SpecError("join", str(error)) from None
        log.info("node=%s joined from=%s", request.node, context.peer())
        self._sessions.end_stream(NodeId(request.node))  # the agent that had the node's certificate before
        return client_pb2.JoinReply(
            certificate=certificate, agent_port=front.agent_port, cluster_id=self._store.cluster_id
        )

    async def RevokeNode(self, request: client_pb2.RevokeNodeRequest, context: Any) -> client_pb2.RevokeNodeReply:
        """Revoke a node's certificate."""
        if not await self._reached().enrolment.revoke(request.node):
            known = f"node {request.node[:80]} has no certificate"
            raise RefusedError(Refusal(RefusalKind.UNKNOWN, known))
        log.warning("node=%s revoked by=%s", request.node, caller().user)
        self._sessions.end_stream(NodeId(request.node))
        return client_pb2.RevokeNodeReply()

    def _reached(self) -> "PublicEndpoint":
        if self._front is None:
            why = "this master serves its own machine only: 'ebb master init' lets others join"
            raise RefusedError(Refusal(RefusalKind.CONFLICT, why))
        return self._front
