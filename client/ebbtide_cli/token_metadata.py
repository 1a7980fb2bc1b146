"""The user's token, sent with every call.

Not as gRPC's call credentials: these call back into Python when they are destroyed, in a thread of gRPC's own, while
the close of a channel holds the interpreter and waits for that thread. Now and then neither goes on.
"""

from typing import Any


class ProvenChannel:
    """A channel, of either kind, as far as stubs see it; each call on it carries ``token``."""

    def __init__(self, channel: Any, token: str) -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {token}"),)

    def _method(self, kind: str, *described: Any, **more: Any) -> "_Method":
        return _Method(getattr(self._channel, kind)(*described, **more), self._metadata)

    def unary_unary(self, *described: Any, **more: Any) -> "_Method":
        """As a channel's own, like the others."""
        return self._method("unary_unary", *described, **more)

    def unary_stream(self, *described: Any, **more: Any) -> "_Method":
        """For one question and many answers."""
        return self._method("unary_stream", *described, **more)

    def stream_unary(self, *described: Any, **more: Any) -> "_Method":
        """For many messages and one answer."""
        return self._method("stream_unary", *described, **more)

    def stream_stream(self, *described: Any, **more: Any) -> "_Method":
        """For a conversation."""
        return self._method("stream_stream", *described, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class _Method:
    """A method of a channel."""

    def __init__(self, method: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self._call = method
        self._metadata = metadata

    def __call__(self, *asked: Any, **more: Any) -> Any:
        return self._call(*asked, **self._with_token(more))

    def future(self, *asked: Any, **more: Any) -> Any:
        """The call, without waiting for its answer."""
        return self._call.future(*asked, **self._with_token(more))

    def _with_token(self, more: dict[str, Any]) -> dict[str, Any]:
        return more | {"metadata": (*(more.get("metadata") or ()), *self._metadata)}
