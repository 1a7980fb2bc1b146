"""Proves the agent's identity to the master."""

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Final, NoReturn, Protocol

import grpc
import grpc.aio
from ebbtide_protos.handshake import TlsProbe, own_trouble, trouble, validity

from ebbtide_agent.link import joined
from ebbtide_agent.link.endpoint import Endpoint, NoMaster
from ebbtide_agent.link.joined import Joined
from ebbtide_agent.link.joining import Metadata, bearer, join_own, renew

LOOK_S: Final = 3600.0
"""Seconds between checks whether the certificate must be renewed, also after a failed renewal."""

log = logging.getLogger(__name__)


class Proof(Protocol):
    """Proves the agent's identity to a master."""

    async def credentials(self, endpoint: Endpoint) -> grpc.ChannelCredentials:
        """Return the credentials for a new connection. Raises NoMaster."""

    def metadata(self, endpoint: Endpoint) -> Metadata:
        """Return the metadata for each call; empty where the connection itself proves the identity."""

    async def keep(self, channel: grpc.aio.Channel, endpoint: Endpoint) -> NoReturn:
        """Renew the credentials over an open connection until cancelled."""

    async def trouble(self, endpoint: Endpoint) -> str:
        """Return why a connection failed if certificates are the reason; else empty."""


class Credentials:
    """Proves a joined node by its certificate, and an agent at a home's socket by its account and the home's token."""

    def __init__(self, home: Path, node: str, node_dir: Path) -> None:
        self._home = home
        self._node = node
        self._node_dir = node_dir

    async def credentials(self, endpoint: Endpoint) -> grpc.ChannelCredentials:
        """Return the credentials for a new connection. Raises NoMaster."""
        if endpoint.home is not None:
            return grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
        member = await self._member(endpoint)
        return grpc.ssl_channel_credentials(member.ca.encode(), member.key.encode(), member.certificate.encode())

    def metadata(self, endpoint: Endpoint) -> Metadata:
        """Return ``EBB_TOKEN`` or the token in the master's home, for that home's socket only; else nothing."""
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
        """Return why a connection failed if certificates are the reason; else empty."""
        member = joined.load(self._node_dir)
        if member is None or endpoint.home is not None:
            return ""
        return await asyncio.to_thread(trouble, TlsProbe(endpoint.host, endpoint.port, member.ca, member.own))

    async def _member(self, endpoint: Endpoint) -> Joined:
        """Return what the node keeps of having joined; join the master of the same home first where needed."""
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
        """Return whether the home has a new certificate authority, or the node's certificate has expired."""
        return (self._home / "tls" / "ca.pem").read_text() != member.ca or bool(own_trouble(member.own, time.time()))


class NoProof:
    """Proves nothing beyond the agent's account, which the socket shows."""

    async def credentials(self, endpoint: Endpoint) -> grpc.ChannelCredentials:
        """Return the credentials for a new connection."""
        return grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)

    def metadata(self, endpoint: Endpoint) -> Metadata:
        """Return no metadata."""
        return ()

    async def keep(self, channel: grpc.aio.Channel, endpoint: Endpoint) -> NoReturn:
        """Wait until cancelled; there is nothing to renew."""
        while True:
            await asyncio.sleep(LOOK_S)

    async def trouble(self, endpoint: Endpoint) -> str:
        """Return nothing, because there are no certificates."""
        return ""


def _token_of(home: Path) -> str:
    try:
        return (home / "token").read_text().strip()
    except OSError:
        return ""


def _is_due(member: Joined) -> bool:
    begins, ends = validity(member.certificate)
    return time.time() >= ends - (ends - begins) / 3
