"""Gives the methods of the client service on a UNIX socket, as the gRPC library's stub gives them."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ebbtide_protos.v1 import client_pb2
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from ebbtide_cli.wire.call import Call
from ebbtide_cli.wire.status import CallFailed, CallStatus

if TYPE_CHECKING:
    from _socket import socket

Reply = TypeVar("Reply")
Metadata = tuple[tuple[str, str], ...]

SERVICE: Final = client_pb2.DESCRIPTOR.services_by_name["ClientService"]
"""What can be asked: the protocol's own description of it."""


class SocketStub:
    """The methods of `SERVICE` as attributes; each call has a connection of its own, which ``connect`` opens."""

    def __init__(self, connect: "Callable[[], socket]", metadata: Metadata) -> None:
        self._connect = connect
        self._metadata = metadata
        self._calls: set[Call] = set()

    def __getattr__(self, name: str) -> "_Method":
        described = SERVICE.methods_by_name.get(name)
        if described is None:
            raise AttributeError(f"the client service has no method {name!r}")
        method = _Method(self, described)
        setattr(self, name, method)
        return method

    def close(self) -> None:
        """End the calls that go on."""
        for call in list(self._calls):
            call.close()

    def _begin(self, timeout: float | None) -> Call:
        try:
            call = Call(self._connect(), timeout)
        except OSError as error:
            raise CallFailed(CallStatus.UNAVAILABLE, error.strerror or str(error)) from None
        self._calls.add(call)
        return call

    def _end(self, call: Call) -> None:
        self._calls.discard(call)


class _Method:
    """One method of the service."""

    def __init__(self, stub: SocketStub, described: Any) -> None:
        self._stub = stub
        self._path = f"/{described.containing_service.full_name}/{described.name}"
        self._takes_stream = described.client_streaming
        self._gives_stream = described.server_streaming
        self._reply = GetMessageClass(described.output_type)

    def __call__(self, asked: Any, timeout: float | None = None) -> Any:
        """Call the method with a message, or with an iterable of them; return a reply, or a stream of them."""
        requests = asked if self._takes_stream else (asked,)
        replies = Replies(self._stub, self._path, requests, self._reply, timeout)
        return replies if self._gives_stream else _only(replies)


class Replies(Generic[Reply]):
    """The replies of a call, as they arrive."""

    def __init__(
        self, stub: SocketStub, path: str, requests: Iterable[Any], kind: type[Reply], timeout: float | None
    ) -> None:
        self._stub = stub
        self._call = stub._begin(timeout)
        written = (request.SerializeToString() for request in requests)
        self._written: Any = self._call.replies(path, stub._metadata, written)
        self._kind: Any = kind

    def __iter__(self) -> Iterator[Reply]:
        return self

    def __next__(self) -> Reply:
        try:
            reply: Reply = self._kind.FromString(next(self._written))
        except DecodeError:
            self._written.close()
            raise CallFailed(CallStatus.INTERNAL, "a reply cannot be read") from None
        except BaseException:
            self._stub._end(self._call)
            raise
        return reply

    def cancel(self) -> None:
        """End the call, from any thread; whoever waits for a reply gets `CallFailed`."""
        self._call.cancel()


def _only(replies: Replies[Reply]) -> Reply:
    """Return the reply of a call that has one. Raises `CallFailed`."""
    found = list(replies)
    if len(found) != 1:
        raise CallFailed(CallStatus.INTERNAL, f"the call brought {len(found)} replies instead of one")
    return found[0]
