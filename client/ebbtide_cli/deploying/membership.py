"""Ask the master for what a deployment needs of it: invitations, the state of nodes, and that it forgets some."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from ebbtide_protos.invitation import Invitation, encode
from ebbtide_protos.v1 import client_pb2, user_pb2

from ebbtide_cli.deploying.remote import StepFailed
from ebbtide_cli.errors import UNREACHABLE, USAGE, Failure
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.masters.trust import authority
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.wire.status import CallFailed, CallStatus

if TYPE_CHECKING:
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

Reply = TypeVar("Reply")

INVITED_S: Final = 600.0
"""Seconds for which the invitation of a host holds."""
LOST_S: Final = 45.0
"""Seconds until a node that was stopped counts as lost, which takes the master 20, with room to spare."""
POLL_S: Final = 0.5


class NotKnown(StepFailed):
    """The master does not know what it was asked about."""


@dataclass(frozen=True, slots=True)
class TargetCluster:
    """The master at ``address``, and the authority (PEM) by which its nodes know it."""

    address: Address
    ca: str

    @classmethod
    def of(cls, address: Address) -> "TargetCluster":
        """Find out whether this user may deploy to the cluster of the master. Raises `Failure`."""
        with connected(address) as stub:
            caller = ask(stub.WhoAmI, user_pb2.WhoAmIRequest())
        if caller.user.role != "admin":
            role = f"{caller.user.name} has the role {caller.user.role}"
            raise Failure(f"deploy: {role}: only an admin lets machines join", UNREACHABLE)
        if not (ca := authority(address)):
            raise Failure("deploy: this master serves its own machine only: 'ebb master init' lets others join", USAGE)
        return cls(address, ca)

    async def invitation(self, node: str) -> str:
        """Return an invitation for this node, to be kept secret."""
        request = client_pb2.InviteNodeRequest(node=node, expires_s=INVITED_S)
        reply = await self._ask("invite", lambda stub: ask(stub.InviteNode, request))
        return encode(Invitation(reply.address, reply.secret, reply.ca))

    async def now(self) -> float:
        """Return the master's time, in Unix seconds."""
        return (await self._ask("wait", lambda stub: ask(stub.ShowCluster, client_pb2.ShowClusterRequest()))).now

    async def node(self, name: str) -> client_pb2.Node | None:
        """Return the node as the master has it; None if it has none of that name."""
        reply = await self._ask("wait", lambda stub: ask(stub.ListNodes, client_pb2.ListNodesRequest()))
        return next((node for node in reply.nodes if node.name == name), None)

    async def is_up(self, name: str, since: float, within_s: float) -> bool:
        """Wait until the node is connected and was seen after ``since`` (the master's time); return whether it is."""
        deadline = time.monotonic() + within_s
        while True:
            node = await self.node(name)
            if node is not None and node.state != "down" and node.last_seen >= since:
                return True
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_S)

    async def drain(self, name: str) -> client_pb2.NodeReply:
        """Let nothing new start on the node; return which jobs are there, and whose checkpoints it alone has."""
        request = client_pb2.DrainNodeRequest(node=name, user=user_name(), reason="removed by 'ebb deploy remove'")
        return await self._ask("drain", lambda stub: ask(stub.DrainNode, request))

    async def forget(self, name: str) -> None:
        """Revoke the node's certificate, and list the node no more once it counts as lost. Raises `StepFailed`."""

        def revoke(stub: "ClientServiceStub") -> None:
            ask(stub.RevokeNode, client_pb2.RevokeNodeRequest(node=name))

        def remove(stub: "ClientServiceStub") -> None:
            ask(stub.RemoveNode, client_pb2.NodeRequest(node=name, user=user_name()))

        with suppress(NotKnown):  # it never joined
            await self._ask("revoke", revoke)
        deadline = time.monotonic() + LOST_S
        while await self.node(name) is not None:
            try:
                await self._ask("forget", remove)
            except StepFailed:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(1)

    async def _ask(self, step: str, question: "Callable[[ClientServiceStub], Reply]") -> Reply:
        """Ask on a thread, as others wait meanwhile. Raises `StepFailed`."""

        def on_thread() -> Reply:
            with connected(self.address) as stub:
                return question(stub)

        try:
            return await asyncio.to_thread(on_thread)
        except Failure as failure:
            cause = failure.__cause__
            unknown = isinstance(cause, CallFailed) and cause.status is CallStatus.NOT_FOUND
            raise (NotKnown if unknown else StepFailed)(step, failure.message) from None
