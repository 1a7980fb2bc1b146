"""What the agent proves itself with to the master."""

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Final, NoReturn, Protocol

import grpc
import grpc.aio
from ebbtide_protos.handshake import Knock, own_trouble, trouble, validity

from ebbtide_agent.link import joined
from ebbtide_agent.link.endpoint import Endpoint, NoMaster
from ebbtide_agent.link.joined import Joined
from ebbtide_agent.link.joining import Metadata, bearer, join_own, renew

LOOK_S: Final = 3600.0
"""Between two looks at whether the certificate has to be renewed, and after a try that failed."""

log = logging.getLogger(__name__)


class Proof(Protocol):
    """Who the agent is to a master."""

    async def credentials(self, endpoint: Endpoint) -> grpc.ChannelCredentials:
        """For a new connection. Raises NoMaster."""

    def metadata(self, endpoint: Endpoint) -> Metadata:
        """What goes with each call, where the connection alone proves nothing."""

    async def keep(self, channel: grpc.aio.Channel, endpoint: Endpoint) -> NoReturn:
        """Renew what has to be renewed, over a connection that is open, until cancelled."""

    async def trouble(self, endpoint: Endpoint) -> str:
        """Why a connection was not made, as far as certificates are the reason; else empty."""


class Credentials:
    """Those of the account on its own machine; of a node that joined, its certificate."""

    def __init__(self, home: Path, node: str, node_dir: Path) -> None:
        self._home = home
        self._node = node
        self._node_dir = node_dir

    async def credentials(self, endpoint: Endpoint) -> grpc.ChannelCredentials:
        """For a new connection. Raises NoMaster."""
        if endpoint.home is not None:
            return grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
        member = await self._member(endpoint)
        return grpc.ssl_channel_credentials(member.ca.encode(), member.key.encode(), member.certificate.encode())

    def metadata(self, endpoint: Endpoint) -> Metadata:
        """The token that the master left in its home, or that ``EBB_TOKEN`` names, for its socket alone."""
        token = "" if endpoint.home is None else os.environ.get("EBB_TOKEN") or _token_of(endpoint.home)
        return bearer(token) if token else ()

    async def keep(self, channel: grpc.aio.Channel, endpoint: Endpoint) -> NoReturn:
        """Renew the certificate when a third of its life is left."""
        while True:
            member = joined.load(self._node_dir) if endpoint.home is None else None
            if member is not None and _is_due(member):
                try:
                    await renew(channel, member, self._node_dir)
                    log.info("event=certificate-renewed node=%s", self._node)
                except (grpc.aio.AioRpcError, OSError, ValueError) as error:
                    words = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                    log.warning("event=certificate-not-renewed reason=%r", words)
            await asyncio.sleep(LOOK_S)

    async def trouble(self, endpoint: Endpoint) -> str:
        """Why a connection was not made, as far as certificates are the reason; else empty."""
        member = joined.load(self._node_dir)
        if member is None or endpoint.home is not None:
            return ""
        return await asyncio.to_thread(trouble, Knock(endpoint.host, endpoint.port, member.ca, member.own))

    async def _member(self, endpoint: Endpoint) -> Joined:
        """What the node joined with; the master of the same home is joined without being asked."""
        member = joined.load(self._node_dir)
        if endpoint.front is not None and (member is None or self._is_outdated(member)):
            try:
                ca, token = (self._home / "tls" / "ca.pem").read_text(), _token_of(self._home)
                return await join_own(endpoint.front, ca, token, self._node, self._node_dir)
            except OSError as error:
                raise NoMaster(f"the node cannot join the master of its home: {error}") from None
        if member is None:
            raise NoMaster(f"node {self._node} has not joined the cluster of {endpoint}: 'ebb agent join'")
        return member

    def _is_outdated(self, member: Joined) -> bool:
        """Whether another authority was made in this home since, or the certificate has expired."""
        return (self._home / "tls" / "ca.pem").read_text() != member.ca or bool(own_trouble(member.own, time.time()))


class NoProof:
    """Nothing but being of the same account."""

    async def credentials(self, endpoint: Endpoint) -> grpc.ChannelCredentials:
        """For a new connection."""
        return grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)

    def metadata(self, endpoint: Endpoint) -> Metadata:
        """Nothing."""
        return ()

    async def keep(self, channel: grpc.aio.Channel, endpoint: Endpoint) -> NoReturn:
        """There is nothing to keep."""
        while True:
            await asyncio.sleep(LOOK_S)

    async def trouble(self, endpoint: Endpoint) -> str:
        """There are no certificates."""
        return ""


def _token_of(home: Path) -> str:
    try:
        return (home / "token").read_text().strip()
    except OSError:
        return ""


def _is_due(member: Joined) -> bool:
    begins, ends = validity(member.certificate)
    return time.time() >= ends - (ends - begins) / 3
