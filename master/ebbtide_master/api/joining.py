"""Nodes that come with an invitation, and those that are sent away: a part of the clients' side."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ebbtide_core.cluster import Refusal, RefusalKind
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import NodeId
from ebbtide_protos.v1 import client_pb2, client_pb2_grpc

from ebbtide_master.identity.caller import caller
from ebbtide_master.loop import RefusedError
from ebbtide_master.nodes.agents import Agents
from ebbtide_master.store.journal import Store

if TYPE_CHECKING:  # it needs the library of certificates, which most masters do without
    from ebbtide_master.tls.enrolment import Enrolment
    from ebbtide_master.tls.listeners import Doors

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Front:
    """Where this master is reached from other machines, and who may join there."""

    doors: "Doors"
    host: str
    port: int
    agent_port: int

    @property
    def enrolment(self) -> "Enrolment":
        """Who has joined, and who may."""
        return self.doors.enrolment

    @property
    def address(self) -> str:
        """Of clients, as HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def certificate_ends(self) -> float | None:
        """When the master's certificate ends, in Unix seconds."""
        return self.doors.certificate_ends()


class Joining(client_pb2_grpc.ClientServiceServicer):
    """`Clients` are this, too."""

    _agents: Agents
    _store: Store
    front: Front | None = None
    """None for a master without an authority: it serves this machine only, and nobody has to join."""

    async def InviteNode(self, request: client_pb2.InviteNodeRequest, context: Any) -> client_pb2.InviteNodeReply:
        """Let one node join, once, until it expires."""
        front = self._front()
        try:
            secret, expires = await front.enrolment.invite(request.node, request.expires_s)
        except ValueError as error:
            raise SpecError("invitation", str(error)) from None
        log.info("node=%s invited by=%s", request.node or "any", caller().user)
        ca = front.enrolment.authority.pem
        return client_pb2.InviteNodeReply(address=front.address, secret=secret, ca=ca, expires=expires)

    async def Join(self, request: client_pb2.JoinRequest, context: Any) -> client_pb2.JoinReply:
        """Sign the key of a node that has the secret of an invitation."""
        front = self._front()
        try:
            certificate = await front.enrolment.join(request.secret, request.node, request.csr)
        except ValueError as error:
            raise SpecError("join", str(error)) from None
        log.info("node=%s joined from=%s", request.node, context.peer())
        self._agents.end_stream(NodeId(request.node))  # whoever had the certificate before
        return client_pb2.JoinReply(
            certificate=certificate, agent_port=front.agent_port, cluster_id=self._store.cluster_id
        )

    async def RevokeNode(self, request: client_pb2.RevokeNodeRequest, context: Any) -> client_pb2.RevokeNodeReply:
        """Take a node's certificate back."""
        if not await self._front().enrolment.revoke(request.node):
            known = f"node {request.node[:80]} has no certificate"
            raise RefusedError(Refusal(RefusalKind.UNKNOWN, known))
        log.warning("node=%s revoked by=%s", request.node, caller().user)
        self._agents.end_stream(NodeId(request.node))
        return client_pb2.RevokeNodeReply()

    def _front(self) -> Front:
        if self.front is None:
            why = "this master serves its own machine only: 'ebb master init' lets others join"
            raise RefusedError(Refusal(RefusalKind.CONFLICT, why))
        return self.front
