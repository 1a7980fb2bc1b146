"""The method by which an agent renews its certificate: a part of the agents' side."""

import logging
from typing import TYPE_CHECKING, Any

from ebbtide_core.cluster import Refusal, RefusalKind
from ebbtide_core.model.spec import SpecError
from ebbtide_protos.v1 import agent_pb2, agent_pb2_grpc

from ebbtide_master.identity.caller import caller
from ebbtide_master.loop import RefusedError

if TYPE_CHECKING:  # it needs the library of certificates, which most masters do without
    from ebbtide_master.tls.enrolment import Enrolment

log = logging.getLogger(__name__)


class Renewing(agent_pb2_grpc.AgentServiceServicer):
    """`Agents` are this, too."""

    enrolment: "Enrolment | None" = None
    """None for a master without an authority."""

    async def Renew(self, request: agent_pb2.CertificateRequest, context: Any) -> agent_pb2.CertificateReply:
        """Sign another key of the node that asks."""
        node, serial = caller().node, caller().token
        if self.enrolment is None or not node:
            raise RefusedError(Refusal(RefusalKind.CONFLICT, "there is no certificate to renew here"))
        try:
            certificate = await self.enrolment.renew(node, serial, request.csr)
        except ValueError as error:
            raise SpecError("csr", str(error)) from None
        log.info("node=%s renewed its certificate", node)
        return agent_pb2.CertificateReply(certificate=certificate)

    def certificate_ends(self, node: str) -> float | None:
        """When the node's certificate ends, in Unix seconds; None if it has none."""
        return self.enrolment.ends(node) if self.enrolment is not None else None
