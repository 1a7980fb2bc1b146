"""Gets a node its certificate: the key is made here and never leaves the node, and the master signs it."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from ebbtide_protos.handshake import AnotherError, TlsProbe, passing_trouble
from ebbtide_protos.invitation import Invitation
from ebbtide_protos.v1 import agent_pb2, agent_pb2_grpc, client_pb2, client_pb2_grpc

from ebbtide_agent.link import joined
from ebbtide_agent.link.endpoint import Endpoint, parse_endpoint
from ebbtide_agent.link.joined import Joined

Metadata = tuple[tuple[str, str], ...]
"""Names and values that gRPC sends beside a call's message."""

REPLY_S: Final = 30.0
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
_INVITED_S: Final = 600.0


class JoinError(Exception):
    """The node could not join; the message is one line."""


class MasterAwayError(JoinError):
    """No master has answered; one may answer later."""


@dataclass(frozen=True, slots=True)
class Key:
    """A new private key, and the request that a certificate is made of; both as PEM."""

    private: str
    request: str


def new_key() -> Key:
    """Return a new ECDSA P-256 key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    # The master decides what the certificate says; it takes only the key from the request.
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Key(private.decode(), request.public_bytes(Encoding.PEM).decode())


async def join(invitation: Invitation, node: str, node_dir: Path) -> Endpoint:
    """Join as ``node``, store that in its directory, and return the master's endpoint. Raises JoinError, OSError."""
    try:
        front = parse_endpoint(invitation.address)
    except ValueError as error:
        raise JoinError(str(error)) from None
    if not invitation.ca:
        raise JoinError("the invitation is to a master without TLS, which serves its own machine only")
    channel = grpc.ssl_channel_credentials(invitation.ca.encode())
    async with grpc.aio.secure_channel(str(front), channel, options=_OPTIONS) as opened:
        try:
            key, reply = await _signed(opened, invitation.secret, node)
        except grpc.aio.AioRpcError as error:
            raise await _refusal(error, front, invitation.ca) from None
    endpoint = Endpoint(front.host, reply.agent_port)
    joined.store(node_dir, Joined(str(endpoint), invitation.ca, reply.certificate, key.private))
    return endpoint


def bearer(token: str) -> Metadata:
    """Return the metadata that carries a token.

    Not as gRPC's call credentials, which may hang when a channel is closed: see `ebbtide_cli.masters.credentials`.
    """
    return (("authorization", f"Bearer {token}"),)


async def join_own(front: Endpoint, ca: str, token: str, node: str, node_dir: Path) -> Joined:
    """Join the master of the same home by inviting the node with the admin's token there. Raises AioRpcError."""
    credentials = grpc.ssl_channel_credentials(ca.encode())
    async with grpc.aio.secure_channel(str(front), credentials, options=_OPTIONS) as channel:
        request = client_pb2.InviteNodeRequest(node=node, expires_s=_INVITED_S)
        stub = client_pb2_grpc.ClientServiceStub(channel)
        invited = await stub.InviteNode(request, timeout=REPLY_S, metadata=bearer(token))
        key, reply = await _signed(channel, invited.secret, node)
    member = Joined("", ca, reply.certificate, key.private)
    joined.store(node_dir, member)
    return member


async def renew(channel: grpc.aio.Channel, member: Joined, node_dir: Path) -> None:
    """Get a new key and certificate over a connection that the old one opened. Raises AioRpcError, OSError."""
    key = new_key()
    request = agent_pb2.CertificateRequest(csr=key.request)
    reply = await agent_pb2_grpc.AgentServiceStub(channel).Renew(request, timeout=REPLY_S)
    joined.store(node_dir, Joined(member.address, member.ca, reply.certificate, key.private))


async def _signed(channel: grpc.aio.Channel, secret: str, node: str) -> tuple[Key, client_pb2.JoinReply]:
    key = new_key()
    request = client_pb2.JoinRequest(secret=secret, node=node, csr=key.request)
    return key, await client_pb2_grpc.ClientServiceStub(channel).Join(request, timeout=REPLY_S)


async def _refusal(error: grpc.aio.AioRpcError, front: Endpoint, ca: str) -> JoinError:
    words = error.details() or error.code().name
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return JoinError(words)
    try:
        found = await asyncio.to_thread(passing_trouble, TlsProbe(front.host, front.port, ca))
    except AnotherError as another:
        return JoinError(str(another))
    return MasterAwayError(found or f"no master at {front}: {words}")
