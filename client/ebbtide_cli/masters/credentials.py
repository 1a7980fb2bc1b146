"""Prove to a master who this user is, and check that the master is the one that it claims to be.

The user's token goes with every call. gRPC's call credentials are not used for it: they call back into Python when they
are destroyed, in a thread of gRPC's own, while the close of a channel holds the interpreter and waits for that thread.
Now and then that is a deadlock.
"""

import os
from typing import TYPE_CHECKING, Any, Final

from ebbtide_cli.errors import UNREACHABLE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.logins import login_for
from ebbtide_cli.masters.trust import authority, is_own

if TYPE_CHECKING:
    import grpc

TOKEN_VARIABLE: Final = "EBB_TOKEN"

Metadata = tuple[tuple[str, str], ...]


def proven(channel: "grpc.Channel | grpc.aio.Channel", address: Address) -> Any:
    """Wrap the channel for stubs, so that the user's token is sent with each call to the master at ``address``."""
    token = token_for(address)
    return channel if token is None else ProvenChannel(channel, token)


def token_metadata(address: Address) -> Metadata:
    """Return the metadata that carries the user's token, with each call to the master at ``address``."""
    token = token_for(address)
    return () if token is None else bearer(token)


def channel_credentials(address: Address) -> "grpc.ChannelCredentials":
    """Return the credentials of a channel: none at a socket, whose owner was checked before; TLS at a port.

    Raises `Failure` if no certificate of an authority is known for that master.
    """
    import grpc

    if address.home is not None:
        return grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
    if trusted := authority(address):
        return grpc.ssl_channel_credentials(trusted.encode())
    raise Failure(f"nothing proves who the master at {address} is: log in there first ('ebb login')", UNREACHABLE)


def token_for(address: Address) -> str | None:
    """Return the token of ``EBB_TOKEN``, else of the login at the address, else of the master's home if it is here.

    Whoever calls ``as_owner`` of the home has its token before all others.
    """
    if address.as_owner and address.home is not None and (own := _token_of(Home(address.home))):
        return own
    if named := os.environ.get(TOKEN_VARIABLE):
        return named.strip()
    if login := login_for(str(address), *address.beside):
        return login.token
    home = Home(address.home) if address.home is not None else Home.current() if is_own(address) else None
    return None if home is None else _token_of(home)


def _token_of(home: Home) -> str | None:
    try:
        return home.token.read_text().strip()
    except OSError:
        return None


def is_this_machine(address: Address) -> bool:
    """Whether the address is on this machine, so that paths mean the same for the master as here."""
    if address.is_loopback:
        return True
    import socket

    try:
        found = socket.getaddrinfo(address.host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_is_own(family, where) for family, _, _, _, where in found)


def _is_own(family: int, where: tuple[object, ...]) -> bool:
    """Whether the address is this machine's: a socket can be bound only to those."""
    import socket

    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(where)
        except OSError:
            return False
        return True


# --- the token with every call ---


def bearer(token: str) -> Metadata:
    """Return the metadata in which a call carries ``token``."""
    return (("authorization", f"Bearer {token}"),)


class ProvenChannel:
    """The part of a channel's interface that stubs use, for either kind of channel; each call carries ``token``."""

    def __init__(self, channel: Any, token: str) -> None:
        self._channel = channel
        self._metadata = bearer(token)

    def _method(self, kind: str, *described: Any, **more: Any) -> "_MethodWithToken":
        return _MethodWithToken(getattr(self._channel, kind)(*described, **more), self._metadata)

    def unary_unary(self, *described: Any, **more: Any) -> "_MethodWithToken":
        """Return a method that takes one message and returns one."""
        return self._method("unary_unary", *described, **more)

    def unary_stream(self, *described: Any, **more: Any) -> "_MethodWithToken":
        """Return a method that takes one message and returns a stream."""
        return self._method("unary_stream", *described, **more)

    def stream_unary(self, *described: Any, **more: Any) -> "_MethodWithToken":
        """Return a method that takes a stream and returns one message."""
        return self._method("stream_unary", *described, **more)

    def stream_stream(self, *described: Any, **more: Any) -> "_MethodWithToken":
        """Return a method that takes a stream and returns one."""
        return self._method("stream_stream", *described, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class _MethodWithToken:
    """A method of a channel."""

    def __init__(self, method: Any, metadata: Metadata) -> None:
        self._call = method
        self._metadata = metadata

    def __call__(self, *asked: Any, **more: Any) -> Any:
        return self._call(*asked, **self._with_token(more))

    def future(self, *asked: Any, **more: Any) -> Any:
        """Start the call without waiting for its reply."""
        return self._call.future(*asked, **self._with_token(more))

    def _with_token(self, more: dict[str, Any]) -> dict[str, Any]:
        return more | {"metadata": (*(more.get("metadata") or ()), *self._metadata)}
