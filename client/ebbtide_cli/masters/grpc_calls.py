"""Make calls with the gRPC library, for masters at a port: they end on Ctrl-C, and fail as calls on a socket do.

The main thread never waits inside gRPC for a call that cannot be ended.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

import grpc
from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

from ebbtide_cli import interrupts
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.credentials import channel_credentials, proven
from ebbtide_cli.wire.status import CallFailed, CallStatus

Reply = TypeVar("Reply")

CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


@contextmanager
def stub_at(address: Address) -> Iterator[ClientServiceStub]:
    """Give a stub whose calls are answered by the master at ``address``."""
    with address.reached() as target:
        channel = grpc.secure_channel(target, channel_credentials(address), options=CHANNEL_OPTIONS)
        try:
            usable: Any = _Channel(proven(channel, address))
            yield ClientServiceStub(usable)
        finally:
            _close(channel)


def failed(error: grpc.RpcError) -> CallFailed:
    """Return the same failure without gRPC's types."""
    status = CallStatus(error.code().value[0])
    trailing: Any = error.trailing_metadata() or ()  # grpc.aio's are plain pairs, without names
    return CallFailed(status, error.details() or "", {str(key): str(value) for key, value in trailing})


def _close(channel: grpc.Channel) -> None:
    """Close the channel, unless the process ends anyway: closing would wait for the cancelled calls."""
    if interrupts.is_pending():
        interrupts.keep_until_exit(channel)
    else:
        channel.close()


class _Channel:
    """The part of a gRPC channel's interface that stubs use."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def unary_unary(self, *described: Any, **more: Any) -> "_UnaryCall":
        return _UnaryCall(self._channel.unary_unary(*described, **more))

    def stream_unary(self, *described: Any, **more: Any) -> "_UnaryCall":
        return _UnaryCall(self._channel.stream_unary(*described, **more))

    def unary_stream(self, *described: Any, **more: Any) -> "_Conversation":
        return _Conversation(self._channel.unary_stream(*described, **more))

    def stream_stream(self, *described: Any, **more: Any) -> "_Conversation":
        return _Conversation(self._channel.stream_stream(*described, **more))


class _UnaryCall:
    """A method whose call returns one reply."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def __call__(self, *asked: Any, **more: Any) -> Any:
        call = self._method.future(*asked, **more)
        with interrupts.waiting_for(call):
            try:
                return call.result()
            except grpc.FutureCancelledError:
                raise interrupts.pending() from None
            except grpc.RpcError as error:
                raise failed(error) from error


class _Conversation:
    """A method whose call returns a stream of replies."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def __call__(self, *asked: Any, **more: Any) -> "_Answers[Any]":
        return _Answers(self._method(*asked, **more))


class _Answers(Generic[Reply]):
    """The replies of a streaming call, as they arrive."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __iter__(self) -> Iterator[Reply]:
        return self

    def __next__(self) -> Reply:
        with interrupts.waiting_for(self._call):
            try:
                reply: Reply = next(self._call)
            except grpc.RpcError as error:
                if interrupts.is_pending():
                    raise interrupts.pending() from None
                raise failed(error) from error
        return reply

    def cancel(self) -> None:
        """End the call, from any thread."""
        self._call.cancel()
