"""Send the user's token with every call.

gRPC's call credentials are not used: they call back into Python when they are destroyed, in a thread of gRPC's own,
while the close of a channel holds the interpreter and waits for that thread. Now and then that is a deadlock.
"""

from typing import Any

Metadata = tuple[tuple[str, str], ...]


def bearer(token: str) -> Metadata:
    """Return the metadata in which a call carries ``token``."""
    return (("authorization", f"Bearer {token}"),)


class ProvenChannel:
    """The part of a channel's interface that stubs use, for either kind of channel; each call carries ``token``."""

    def __init__(self, channel: Any, token: str) -> None:
        self._channel = channel
        self._metadata = bearer(token)

    def _method(self, kind: str, *described: Any, **more: Any) -> "_Method":
        return _Method(getattr(self._channel, kind)(*described, **more), self._metadata)

    def unary_unary(self, *described: Any, **more: Any) -> "_Method":
        """Return a method that takes one message and returns one."""
        return self._method("unary_unary", *described, **more)

    def unary_stream(self, *described: Any, **more: Any) -> "_Method":
        """Return a method that takes one message and returns a stream."""
        return self._method("unary_stream", *described, **more)

    def stream_unary(self, *described: Any, **more: Any) -> "_Method":
        """Return a method that takes a stream and returns one message."""
        return self._method("stream_unary", *described, **more)

    def stream_stream(self, *described: Any, **more: Any) -> "_Method":
        """Return a method that takes a stream and returns one."""
        return self._method("stream_stream", *described, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class _Method:
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
