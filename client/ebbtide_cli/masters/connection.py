"""Talk to the master over gRPC, and turn each kind of failure into one line and an exit code.

A master's socket is talked to by `wire`, all else by the gRPC library, which takes long to load.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeVar, cast

from ebbtide_protos import NODE_AWAY_KEY, RETRY_KEY

from ebbtide_cli import interrupts
from ebbtide_cli.errors import FAILED, UNREACHABLE, USAGE, Failure, NodeAway, TooFast, Unreachable
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.finding import find_master
from ebbtide_cli.wire.status import CallFailed, CallStatus

if TYPE_CHECKING:
    import grpc
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

Request = TypeVar("Request")
Reply = TypeVar("Reply")

REPLY_S = 30.0
"""Seconds to wait for a reply: replaying a long journal takes a master some time; after this long it is stuck."""
RECONNECT_S = 60.0
"""Seconds for which a stream outlives its master: a restart takes seconds."""
RETRY_S = 0.2
SETTLED_S = 1.0
"""Seconds after which an open stream has proved that it reached a master, even if nothing was sent on it yet."""


@contextmanager
def connected(master: str | Address | None) -> "Iterator[ClientServiceStub]":
    """Talk to the master at the address that the user gave (None: the default); raises only `Failure`."""
    address = find_master(master)
    interrupts.never_wait_for_threads()
    try:
        if address.home is not None:
            with _by_socket(address) as stub:
                yield stub
        else:
            from ebbtide_cli.masters.grpc_calls import stub_at

            with stub_at(address) as stub:
                yield stub
    except CallFailed as error:
        raise _failure(error, address) from error


@contextmanager
def _by_socket(address: Address) -> "Iterator[ClientServiceStub]":
    from ebbtide_cli.masters.credentials import token_metadata
    from ebbtide_cli.wire.stub import SocketStub

    with address.connecting() as connect:
        stub = SocketStub(connect, token_metadata(address))
        try:
            yield cast("ClientServiceStub", stub)  # it has the same methods
        finally:
            stub.close()


@asynccontextmanager
async def connecting(master: str | Address | None) -> "AsyncIterator[ClientServiceStub]":
    """Connect for callers that wait for several things at once: the stub's calls are awaited."""
    import grpc
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

    from ebbtide_cli.masters.credentials import proven
    from ebbtide_cli.masters.grpc_calls import failed

    address = find_master(master)
    try:
        async with opened(address) as channel:
            yield ClientServiceStub(proven(channel, address))
    except grpc.RpcError as error:
        raise _failure(failed(error), address) from error


@asynccontextmanager
async def opened(address: Address) -> "AsyncIterator[grpc.aio.Channel]":
    """Open a channel to the master at ``address``, which is proven; calls on it carry no token."""
    import grpc

    from ebbtide_cli.masters.credentials import channel_credentials
    from ebbtide_cli.masters.grpc_calls import CHANNEL_OPTIONS

    with address.reached() as target:
        interrupts.never_wait_for_threads()
        async with grpc.aio.secure_channel(target, channel_credentials(address), options=CHANNEL_OPTIONS) as channel:
            yield channel


def ask(method: "grpc.UnaryUnaryMultiCallable[Request, Reply]", request: Request) -> Reply:
    """Call the master and return its reply; wait for it at most `REPLY_S`."""
    return method(request, timeout=REPLY_S)


def follow(
    master: str | Address | None,
    read: "Callable[[ClientServiceStub], Iterator[Reply]]",
    *,
    reached: bool = False,
    awaits_node: bool = True,
) -> Iterator[Reply]:
    """Yield from the stream that ``read`` opens; open it again when the master or the job's node was away for a while.

    The first connection must succeed, unless the master was ``reached`` a moment ago. ``read`` is called once per
    connection, and has to remember where the last one ended. Raises `NodeAway` at once unless it ``awaits_node``.
    """
    outage = Outage(reached=reached)
    while True:
        try:
            with connected(master) as stub:
                outage.begin()
                for item in read(stub):
                    outage.heard = True
                    yield item
                return
        except Unreachable as error:
            if outage.lasts() or (isinstance(error, NodeAway) and not awaits_node):
                raise
        time.sleep(RETRY_S)


class Outage:
    """Decide whether to open a broken stream again. The caller sets ``heard`` when it brought a message."""

    def __init__(self, *, reached: bool = False) -> None:
        """Start; ``reached``: the other end answered a moment ago."""
        self.heard = False
        self._opened: float | None = None
        self._lost_at: float | None = time.monotonic() if reached else None

    def begin(self) -> None:
        """Note that the stream is opened now."""
        self._opened = time.monotonic()

    def lasts(self) -> bool:
        """Note that the stream broke; return whether it was never open, or has now been broken for too long."""
        now = time.monotonic()
        if self.heard or (self._opened is not None and now - self._opened > SETTLED_S):
            self._lost_at = now
        self.heard, self._opened = False, None
        return self._lost_at is None or now - self._lost_at > RECONNECT_S


def _failure(error: CallFailed, address: Address) -> Failure:
    """Translate a gRPC status; its text comes from the master and already names the field."""
    words = error.words
    match error.status:
        case CallStatus.INVALID_ARGUMENT:
            return Failure(words or "the master refused the request as invalid", USAGE)
        case CallStatus.RESOURCE_EXHAUSTED if "larger than max" in words.lower():
            return Failure(f"the request is larger than the master takes: {words}", USAGE)
        case CallStatus.RESOURCE_EXHAUSTED if (wait_s := _retry_after_s(error)) is not None:
            return TooFast(words, wait_s)
        case CallStatus.UNAUTHENTICATED | CallStatus.PERMISSION_DENIED:
            return Failure(words or f"not allowed by the master at {address}", UNREACHABLE)
        case CallStatus.DEADLINE_EXCEEDED:
            return Unreachable(f"the master at {address} ({address.source}) did not answer within {REPLY_S:g} s")
        case CallStatus.UNAVAILABLE if NODE_AWAY_KEY in error.trailers:
            return NodeAway(words)
        case CallStatus.UNAVAILABLE | CallStatus.CANCELLED:
            return Unreachable(_tls_trouble(address) or f"lost the master at {address} ({address.source}): {words}")
        case CallStatus.UNIMPLEMENTED:
            return Failure(f"the master at {address} is of a version that cannot do this: {words}")
        case _:
            return Failure(words or f"the master at {address} failed: {error.status.name}", FAILED)


def _tls_trouble(address: Address) -> str:
    """Return what is wrong with the certificates, if that is why the master is unavailable; else an empty text."""
    if address.home is not None:
        return ""
    from ebbtide_protos.handshake import TlsProbe, trouble

    from ebbtide_cli.masters.trust import authority

    return trouble(TlsProbe(address.host, address.port, authority(address)))


def _retry_after_s(error: CallFailed) -> float | None:
    """Return after how many seconds the master will accept the request that it refused; None if it does not say."""
    delay_s = error.trailers.get(RETRY_KEY)
    return None if delay_s is None else float(delay_s)
