"""Make gRPC calls cancellable by Ctrl-C: the main thread never waits inside gRPC for a call that cannot be ended."""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import grpc

from ebbtide_cli import interrupts

Reply = TypeVar("Reply")


def cancellable(channel: Any) -> Any:
    """Wrap the channel for stubs, so that its calls end when this process is interrupted."""
    return _Channel(channel)


def close(channel: grpc.Channel) -> None:
    """Close the channel, unless the process ends anyway: closing would wait for the cancelled calls."""
    if interrupts.is_due():
        interrupts.abandon(channel)
    else:
        channel.close()


class _Channel:
    """The part of a gRPC channel's interface that stubs use."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def unary_unary(self, *described: Any, **more: Any) -> "_Question":
        return _Question(self._channel.unary_unary(*described, **more))

    def stream_unary(self, *described: Any, **more: Any) -> "_Question":
        return _Question(self._channel.stream_unary(*described, **more))

    def unary_stream(self, *described: Any, **more: Any) -> "_Conversation":
        return _Conversation(self._channel.unary_stream(*described, **more))

    def stream_stream(self, *described: Any, **more: Any) -> "_Conversation":
        return _Conversation(self._channel.stream_stream(*described, **more))


class _Question:
    """A method whose call returns one reply."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def __call__(self, *asked: Any, **more: Any) -> Any:
        call = self._method.future(*asked, **more)
        with interrupts.waiting_for(call):
            try:
                return call.result()
            except grpc.FutureCancelledError:
                raise interrupts.what_is_due() from None


class _Conversation:
    """A method whose call returns a stream of replies."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def __call__(self, *asked: Any, **more: Any) -> "_Answers[Any]":
        return _Answers(self._method(*asked, **more))


class _Answers(Generic[Reply]):
    """The replies of a streaming call, as they arrive; all else is passed on to gRPC's call object."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __iter__(self) -> Iterator[Reply]:
        return self

    def __next__(self) -> Reply:
        with interrupts.waiting_for(self._call):
            try:
                reply: Reply = next(self._call)
            except grpc.RpcError:
                if interrupts.is_due():
                    raise interrupts.what_is_due() from None
                raise
        return reply

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)
