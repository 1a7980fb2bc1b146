"""How this user proves who they are to a master, and who the master is to them."""

import os
import socket
from contextlib import closing
from typing import Any, Final, TypeAlias

import grpc

from ebbtide_cli.address import Address
from ebbtide_cli.errors import UNREACHABLE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.logins import login_for
from ebbtide_cli.token_metadata import ProvenChannel
from ebbtide_cli.trust import authority, is_own

TOKEN_VARIABLE: Final = "EBB_TOKEN"

Channel: TypeAlias = "grpc.Channel | grpc.aio.Channel"


def proven(channel: Channel, address: Address) -> Any:
    """The same channel, for stubs: the user's token travels with every call to the master at ``address``."""
    token = _token(address)
    return channel if token is None else ProvenChannel(channel, token)


def channel_credentials(address: Address) -> grpc.ChannelCredentials:
    """A socket's owner is proven before; at a port it takes TLS, and somebody to trust."""
    if address.home is not None:
        return grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
    if trusted := authority(address):
        return grpc.ssl_channel_credentials(trusted.encode())
    raise Failure(f"nothing proves who the master at {address} is: log in there first ('ebb login')", UNREACHABLE)


def _token(address: Address) -> str | None:
    """What ``EBB_TOKEN`` says, else the login there, else the token in the master's home, if that is at hand."""
    if named := os.environ.get(TOKEN_VARIABLE):
        return named.strip()
    if login := login_for(str(address), *address.beside):
        return login.token
    home = Home(address.home) if address.home is not None else Home.current() if is_own(address) else None
    if home is None:
        return None
    try:
        return home.token.read_text().strip()
    except OSError:
        return None


def is_this_machine(address: Address) -> bool:
    """Whether paths mean the same there as here."""
    if address.is_loopback:
        return True
    try:
        found = socket.getaddrinfo(address.host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_is_own(family, where) for family, _, _, _, where in found)


def _is_own(family: int, where: tuple[object, ...]) -> bool:
    """Whether it is an address of this machine: only to one's own can a socket be bound."""
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
        try:
            probe.bind(where)
        except OSError:
            return False
        return True
