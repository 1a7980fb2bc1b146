"""Reaches the master with a person's token, over one connection that is opened again when it breaks."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any, Final, NoReturn

import grpc
from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

REPLY_S: Final = 30.0
"""Seconds to wait for a reply."""

Opener = Callable[[], AbstractAsyncContextManager[grpc.aio.Channel]]
"""Opens a channel to a master that has been proven, or raises `AwayError`."""

_HTTP: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
}
_AWAY: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class AwayError(Exception):
    """The master does not answer; the message says what was tried."""


class MasterRefusedError(Exception):
    """The master refused a call; the message has its own words, and ``status`` what that is in HTTP."""

    def __init__(self, words: str, status: int) -> None:
        super().__init__(words)
        self.status = status


class Master:
    """The master, as anybody who has a token reaches it."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._opening = asyncio.Lock()
        self._stack: AsyncExitStack | None = None
        self._channel: Any = None
        self._stub: Any = None

    async def call(self, method: str, request: Any, token: str) -> Any:
        """Call a method and return its reply. Raises `AwayError` and `MasterRefusedError`."""
        stub = await self._reached()
        try:
            return await getattr(stub, method)(request, metadata=_bearer(token), timeout=REPLY_S)
        except grpc.aio.AioRpcError as error:
            raise await self._translated(error, stub) from None
        except asyncio.CancelledError:
            raise_unless_closed()

    async def stream(self, method: str, request: Any, token: str) -> AsyncGenerator[Any, None]:
        """Yield the replies of a streaming method. Raises `AwayError` and `MasterRefusedError`."""
        stub = await self._reached()
        call = getattr(stub, method)(request, metadata=_bearer(token))
        try:
            async for reply in call:
                yield reply
        except grpc.aio.AioRpcError as error:
            raise await self._translated(error, stub) from None
        except asyncio.CancelledError:
            raise_unless_closed()
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the connection."""
        stack, self._stack, self._channel, self._stub = self._stack, None, None, None
        if stack is not None:
            with suppress(grpc.RpcError, OSError):
                await stack.aclose()

    async def _reached(self) -> Any:
        async with self._opening:
            if self._stub is None:
                async with AsyncExitStack() as stack:
                    self._channel = await stack.enter_async_context(self._opener())
                    self._stack = stack.pop_all()
                    self._stub = ClientServiceStub(self._channel)
            return self._stub

    async def _translated(self, error: grpc.aio.AioRpcError, stub: Any) -> AwayError | MasterRefusedError:
        """Return what the error of a call means; close the connection if it is broken, and not for one call alone.

        A node that is silent, or one slow reply, makes a call fail in the same way, and all calls share the connection.
        """
        code, words = error.code(), error.details() or ""
        if code in _AWAY:
            async with self._opening:
                if self._stub is stub and self._channel.get_state() is not grpc.ChannelConnectivity.READY:
                    await self.close()  # a master that starts again may be at another place
            return AwayError(words or "the master does not answer")
        return MasterRefusedError(words or f"the master failed: {code.name}", _HTTP.get(code, 502))


def raise_unless_closed() -> NoReturn:
    """Raise what an interrupted call means: `AwayError` if another call has closed the connection they share."""
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        raise AwayError("the connection to the master was lost") from None
    raise asyncio.CancelledError


def _bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)
