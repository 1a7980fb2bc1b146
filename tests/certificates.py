"""Certificates for tests, good ones and others, all of authorities of the tests' own."""

import time
from pathlib import Path
from typing import Final

import grpc
from ebbtide_agent.joining import new_key
from ebbtide_master.tls.authority import CERTIFICATE_S, DAY_S, Authority, create

LONG_AGO_S: Final = CERTIFICATE_S + 10 * DAY_S


def an_authority() -> Authority:
    """A new one, which nobody trusts yet."""
    return Authority(*create(time.time()))


def a_certificate(authority: Authority, node: str, age_s: float = 0.0) -> tuple[str, str]:
    """Key and certificate of a node, as PEM, made so long ago."""
    key = new_key()
    return key.private, authority.agent(node, key.request, time.time() - age_s)


def channel(port: int, ca: str, own: tuple[str, str] | None = None, token: str = "") -> grpc.aio.Channel:
    """To a master on this machine, as whoever ``own`` or ``token`` proves."""
    pair = (own[0].encode(), own[1].encode()) if own is not None else (None, None)
    credentials = grpc.ssl_channel_credentials(ca.encode(), *pair)
    if token:
        credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(f"localhost:{port}", credentials, options=options)


def put_server(folder: Path, authority: Authority, hosts: tuple[str, ...], age_s: float = 0.0) -> None:
    """Have a master show another certificate from now on."""
    certificate, key = authority.server(hosts, time.time() - age_s)
    draft = folder / "draft"
    draft.write_text(key + certificate)
    draft.replace(folder / "server.pem")
