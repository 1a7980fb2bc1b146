"""Certificates for tests, good ones and others, all of authorities of the tests' own."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
from ebbtide_agent.link.joining import new_key
from ebbtide_cli.masters.credentials import ProvenChannel
from ebbtide_master.tls.authority import CERTIFICATE_S, DAY_S, Authority, create

LONG_AGO_S: Final = CERTIFICATE_S + 10 * DAY_S


def an_authority() -> Authority:
    """A new one, which nobody trusts yet."""
    return Authority(*create(time.time()))


def a_certificate(authority: Authority, node: str, age_s: float = 0.0) -> tuple[str, str]:
    """Key and certificate of a node, as PEM, made so long ago."""
    key = new_key()
    return key.private, authority.agent(node, key.request, time.time() - age_s)


@asynccontextmanager
async def reach(port: int, ca: str, own: tuple[str, str] | None = None, token: str = "") -> AsyncIterator[Any]:
    """A channel to a master on this machine, as whoever ``own`` or ``token`` proves."""
    pair = (own[0].encode(), own[1].encode()) if own is not None else (None, None)
    credentials = grpc.ssl_channel_credentials(ca.encode(), *pair)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options=options) as channel:
        yield ProvenChannel(channel, token) if token else channel


def put_server(folder: Path, authority: Authority, hosts: tuple[str, ...], age_s: float = 0.0) -> None:
    """Have a master show another certificate from now on."""
    certificate, key = authority.server(hosts, time.time() - age_s)
    draft = folder / "draft"
    draft.write_text(key + certificate)
    draft.replace(folder / "server.pem")
