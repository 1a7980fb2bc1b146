"""The outermost layer of every method: whatever comes in or goes wrong, the caller gets a status code and one line."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import grpc
from ebbtide_core.cluster import RefusalKind
from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError
from ebbtide_protos.later import RETRY_KEY
from ebbtide_protos.v1 import client_pb2
from google.protobuf.message import DecodeError

from ebbtide_master.api.views import PAGE
from ebbtide_master.calls.admission import Admission, Allow
from ebbtide_master.identity.caller import NotAllowedError, NotKnownError
from ebbtide_master.identity.standing import Standing
from ebbtide_master.loop import RefusedError, StoppedError
from ebbtide_master.nodes.sessions import LogUnavailableError
from ebbtide_master.throttle.places import FullError
from ebbtide_master.throttle.rates import TooFastError

SLOW_READER_S: Final = limits.SLOW_READER_S
MAX_WORDS: Final = limits.MAX_STATUS_WORDS

_STATUS: Final = {
    RefusalKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalKind.UNKNOWN: grpc.StatusCode.NOT_FOUND,
    RefusalKind.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    RefusalKind.LIMIT: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

GRPC_LOG: Final = "grpc._cython.cygrpc"
"""The name of the logger to which gRPC says what went wrong in it."""

log = logging.getLogger(__name__)


def has_left(error: BaseException | None) -> bool:
    """Whether gRPC failed because the caller left: it took what was to be sent, and could not send it.

    What it does not take at all was a mistake of ours.
    """
    return _is_of_a_batch(error) and str(error).startswith('Failed "execute_batch"')


def _is_of_a_batch(error: BaseException | None) -> bool:
    return type(error).__name__ == "ExecuteBatchError"  # gRPC publishes no name for it


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """A filter for gRPC's log: that a caller left just while its call was answered is nobody's mistake.

    Of such a one our own log says a line where it says everything, and of any other failure of the kind always.
    """
    error = record.exc_info[1] if record.exc_info else None
    if not _is_of_a_batch(error):
        return True
    if has_left(error):
        log.debug("a caller left just while it was answered: %s", error)
    else:
        log.warning("gRPC could not answer: %s: %s", record.getMessage(), error)
    return False


class MalformedError(ValueError):
    """What came in is not a message of the method."""


class SlowReaderError(Exception):
    """Nobody reads what a stream has to say."""

    def __init__(self) -> None:
        super().__init__(f"nothing of this stream was read for {SLOW_READER_S:g} s: it was cut off")


class Edge(grpc.aio.ServerInterceptor):
    """Stands before the servicers, which raise what they have to say."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._guarded: dict[str, Any] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """The handler of the method, guarded; None if there is no such method."""
        name = handler_call_details.method
        if name not in self._guarded:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            self._guarded[name] = _guarded(name, handler, self._admission)
        return self._guarded[name]


def _guarded(name: str, handler: Any, admission: Admission) -> Any:
    parse = _parser(handler.request_deserializer)
    if handler.request_streaming:
        method = _streamed(name, admission, _checked, handler.stream_stream)
        return grpc.stream_stream_rpc_method_handler(method, parse, handler.response_serializer)
    if handler.response_streaming:
        method = _streamed(name, admission, _check, handler.unary_stream)
        return grpc.unary_stream_rpc_method_handler(method, parse, handler.response_serializer)
    called = _called(name, admission, handler.unary_unary)
    return grpc.unary_unary_rpc_method_handler(called, parse, _serializer(handler.response_serializer))


def _called(
    name: str, admission: Admission, method: Callable[[Any, Any], Awaitable[Any]]
) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        try:
            with admission.admitted(name, context, streams=False) as admitted:
                wanted = _check(request, admitted.allow)  # what is refused does not wait for its turn
                async with admitted.turn:
                    return await _seen(await method(wanted, context), admitted.show)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 (the caller is told, and what nobody expected is logged)
            await _abort(name, context, error)

    return call


async def _seen(reply: Any, show: Callable[[Any], Any]) -> Any:
    """What may be seen of a reply. A long list is put together as bytes, in parts: others have turns in between."""
    if not isinstance(reply, client_pb2.ListJobsReply):
        return show(reply)
    parts, jobs = list[bytes](), reply.jobs
    for start in range(0, len(jobs), PAGE):
        page = client_pb2.ListJobsReply(jobs=jobs[start : start + PAGE])
        parts.append(show(page).SerializeToString())
        await asyncio.sleep(0)
    return b"".join(parts)


def _serializer(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """``serialize``, but for what is bytes already."""
    return lambda reply: reply if isinstance(reply, bytes) else serialize(reply)


def _streamed(
    name: str, admission: Admission, check: Callable[[Any, Allow], Any], method: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], Awaitable[None]]:
    async def stream(request: Any, context: Any) -> None:
        try:
            with admission.admitted(name, context, streams=True) as admitted, admitted.standing() as standing:
                async with aclosing(method(check(request, admitted.allow), context)) as replies:
                    are_read = await _send(standing, replies, admitted.show, context)
                if not are_read:  # that is told once they read on; until then only the last reply is kept
                    await _abort(name, context, SlowReaderError())
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 (the caller is told, and what nobody expected is logged)
            await _abort(name, context, error)

    return stream


async def _send(standing: Standing, replies: AsyncIterator[Any], show: Callable[[Any], Any], context: Any) -> bool:
    """Send all of them, as long as their reader may have them; False as soon as nobody reads them."""
    while (reply := await standing.next_of(replies)) is not None:
        try:
            async with asyncio.timeout(SLOW_READER_S):
                await context.write(show(reply))
        except TimeoutError:
            return False
    return True


async def _abort(name: str, context: Any, error: Exception) -> None:
    if has_left(error):  # nobody has to be told
        raise asyncio.CancelledError from None
    code, words = _status(name, error)
    later = ((RETRY_KEY, f"{error.wait_s:.3f}"),) if isinstance(error, TooFastError) else ()
    try:
        await context.abort(code, words, later)
    except grpc.aio.InternalError as failure:
        if not has_left(failure):
            log.warning("method=%s: the caller could not be told that it failed: %s", name, failure)
        raise asyncio.CancelledError from None


def _status(name: str, error: Exception) -> tuple[grpc.StatusCode, str]:
    """The status code and the words for ``error``."""
    match error:
        case RefusedError():
            return _STATUS[error.refusal.kind], _shortened(str(error))
        case TooFastError() | FullError() | SlowReaderError():
            return grpc.StatusCode.RESOURCE_EXHAUSTED, _shortened(str(error))
        case SpecError() | MalformedError():
            return grpc.StatusCode.INVALID_ARGUMENT, _shortened(str(error))
        case NotKnownError():
            return grpc.StatusCode.UNAUTHENTICATED, _shortened(str(error))
        case NotAllowedError():
            return grpc.StatusCode.PERMISSION_DENIED, _shortened(str(error))
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


def _check(message: Any, allow: Allow) -> Any:
    if isinstance(message, MalformedError):
        raise message
    allow(message)
    return message


async def _checked(messages: AsyncIterator[Any], allow: Allow) -> AsyncIterator[Any]:
    async for message in messages:
        yield _check(message, allow)
