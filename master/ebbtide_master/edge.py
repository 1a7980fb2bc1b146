"""The outermost layer of every method: whatever comes in or goes wrong, the caller gets a status code and one line."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import grpc
from ebbtide_core.cluster import RefusalKind
from ebbtide_core.spec import SpecError
from google.protobuf.message import DecodeError

from ebbtide_master.agents import LogUnavailableError
from ebbtide_master.loop import RefusedError, StoppedError

MAX_WORDS: Final = 1000
"""Characters of a status' text: it travels as a header, and gRPC drops the whole answer if headers are too large."""

_STATUS: Final = {
    RefusalKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalKind.UNKNOWN: grpc.StatusCode.NOT_FOUND,
    RefusalKind.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    RefusalKind.LIMIT: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

log = logging.getLogger(__name__)


class MalformedError(ValueError):
    """What came in is not a message of the method."""


class Edge(grpc.aio.ServerInterceptor):
    """Stands before the servicers, which raise what they have to say."""

    def __init__(self) -> None:
        self._guarded: dict[str, Any] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """The handler of the method, guarded; None if there is no such method."""
        name = handler_call_details.method
        if name not in self._guarded:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            self._guarded[name] = _guard(name, handler)
        return self._guarded[name]


def _guard(name: str, handler: Any) -> Any:
    parse = _parser(handler.request_deserializer)
    if handler.request_streaming:
        method = _streamed(name, lambda messages, context: handler.stream_stream(_checked(messages), context))
        return grpc.stream_stream_rpc_method_handler(method, parse, handler.response_serializer)
    if handler.response_streaming:
        method = _streamed(name, lambda request, context: handler.unary_stream(_check(request), context))
        return grpc.unary_stream_rpc_method_handler(method, parse, handler.response_serializer)
    return grpc.unary_unary_rpc_method_handler(_called(name, handler.unary_unary), parse, handler.response_serializer)


def _called(name: str, method: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        try:
            return await method(_check(request), context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 (the caller is told, and what nobody expected is logged)
            await context.abort(*_status(name, error))

    return call


def _streamed(name: str, method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(method(request, context)) as replies:
                async for reply in replies:
                    yield reply
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 (the caller is told, and what nobody expected is logged)
            await context.abort(*_status(name, error))

    return stream


def _status(name: str, error: Exception) -> tuple[grpc.StatusCode, str]:
    """The status code and the words for ``error``."""
    match error:
        case RefusedError():
            return _STATUS[error.refusal.kind], _shortened(str(error))
        case SpecError() | MalformedError():
            return grpc.StatusCode.INVALID_ARGUMENT, _shortened(str(error))
        case LogUnavailableError() | StoppedError():
            return grpc.StatusCode.UNAVAILABLE, _shortened(str(error))
        case _:
            log.error("method=%s failed", name, exc_info=error)
            return grpc.StatusCode.INTERNAL, f"the master failed ({type(error).__name__}): see its log"


def _shortened(words: str) -> str:
    return words if len(words) <= MAX_WORDS else f"{words[: MAX_WORDS - 1]}…"


def _parser(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """``parse``, but what cannot be parsed comes back as the error: gRPC would log a traceback for each."""

    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return MalformedError("the request is not a message of this method")

    return parsed


def _check(message: Any) -> Any:
    if isinstance(message, MalformedError):
        raise message
    return message


async def _checked(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for message in messages:
        yield _check(message)
