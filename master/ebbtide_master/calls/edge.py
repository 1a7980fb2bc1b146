"""The outermost layer of every method, which turns every error into a status code and one line for the caller."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, Self

import grpc
from ebbtide_core.cluster import RefusalKind
from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError
from ebbtide_protos import NODE_AWAY_KEY, RETRY_KEY
from ebbtide_protos.v1 import client_pb2
from google.protobuf.message import DecodeError

from ebbtide_master.api.views import PAGE
from ebbtide_master.calls.admission import Admission, Allow
from ebbtide_master.identity.caller import NotAllowedError, NotKnownError
from ebbtide_master.loop import RefusedError, StoppedError
from ebbtide_master.nodes.kept_logs import LogUnavailableError
from ebbtide_master.throttle.concurrency import FullError
from ebbtide_master.throttle.rates import TooFastError

SLOW_READER_S: Final = limits.SLOW_READER_S
MAX_WORDS: Final = limits.MAX_STATUS_WORDS

_STATUS: Final = {
    RefusalKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalKind.UNKNOWN: grpc.StatusCode.NOT_FOUND,
    RefusalKind.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    RefusalKind.LIMIT: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

_LONG_LISTS: Final[dict[type, str]] = {client_pb2.ListJobsReply: "jobs", client_pb2.QueryEventsReply: "events"}
"""The replies that may be long, each with the name of its list."""

GRPC_LOG: Final = "grpc._cython.cygrpc"
"""The name of the logger to which gRPC logs its own errors."""

log = logging.getLogger(__name__)


def has_left(error: BaseException | None) -> bool:
    """Whether gRPC failed because the caller left: it accepted a batch to send, and then could not send it.

    A batch that gRPC does not accept is a fault of the master.
    """
    return _is_of_a_batch(error) and str(error).startswith('Failed "execute_batch"')


def _is_of_a_batch(error: BaseException | None) -> bool:
    return type(error).__name__ == "ExecuteBatchError"  # gRPC publishes no name for it


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """Return whether gRPC may log ``record``; failures to send are logged here instead, in one line.

    If the caller left while its call was answered, that is no fault, and the line has the level debug.
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
    """The request is not a message of the method."""


class SlowReaderError(Exception):
    """The caller does not read its stream."""

    def __init__(self) -> None:
        super().__init__(f"nothing of this stream was read for {SLOW_READER_S:g} s: it was cut off")


class Edge(grpc.aio.ServerInterceptor):
    """Wraps the servicers' methods, and turns the errors that they raise into statuses."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._guarded: dict[str, Any] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return the wrapped handler of the method, or None if there is no such method."""
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
                wanted = _check(request, admitted.allow)  # before the turn, so that a refusal does not wait
                async with admitted.turn:
                    return await _seen(await method(wanted, context), admitted.show)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 (the caller gets a status, and an unexpected error is logged)
            await _abort(name, context, error)

    return call


async def _seen(reply: Any, show: Callable[[Any], Any]) -> Any:
    """Return what the caller may see of ``reply``. A long list becomes bytes in parts, with other calls in between."""
    kind = type(reply)
    if kind not in _LONG_LISTS:
        return show(reply)
    name = _LONG_LISTS[kind]
    rows = list(getattr(reply, name))
    reply.ClearField(name)
    parts = [show(reply).SerializeToString()]
    for start in range(0, len(rows), PAGE):
        page = kind(**{name: rows[start : start + PAGE]})
        parts.append(show(page).SerializeToString())
        await asyncio.sleep(0)
    return b"".join(parts)


def _serializer(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return ``serialize`` for messages, which leaves bytes as they are."""
    return lambda reply: reply if isinstance(reply, bytes) else serialize(reply)


def _streamed(
    name: str, admission: Admission, check: Callable[[Any, Allow], Any], method: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], Awaitable[None]]:
    async def stream(request: Any, context: Any) -> None:
        try:
            with admission.admitted(name, context, streams=True) as admitted, admitted.standing() as standing:
                async with standing.held(), aclosing(method(check(request, admitted.allow), context)) as replies:
                    are_read = await _send(replies, admitted.show, context)
                if not are_read:  # the caller gets the error once it reads on; until then one reply is kept
                    await _abort(name, context, SlowReaderError())
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 (the caller gets a status, and an unexpected error is logged)
            await _abort(name, context, error)

    return stream


async def _send(replies: AsyncIterator[Any], show: Callable[[Any], Any], context: Any) -> bool:
    """Send ``replies``; return False once the caller does not read them."""
    try:
        async with asyncio.timeout(None) as timeout:
            with _Patience(timeout) as patience:
                async for reply in replies:
                    patience.begin()
                    await context.write(show(reply))
                    patience.end()
    except TimeoutError:
        if not timeout.expired():  # the method itself raised this error
            raise
        return False
    return True


class _Patience:
    """Lets ``timeout`` expire once a write takes longer than `SLOW_READER_S`, by one timer for many writes."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._clock = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def begin(self) -> None:
        """Count from now on."""
        self._due = self._clock.time() + SLOW_READER_S
        if self._timer is None:
            self._timer = self._clock.call_at(self._due, self._look)

    def end(self) -> None:
        """Count no more."""
        self._due = None

    def _look(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if self._clock.time() >= self._due:
            self._timeout.reschedule(self._due)
        else:
            self._timer = self._clock.call_at(self._due, self._look)


async def _abort(name: str, context: Any, error: Exception) -> None:
    if has_left(error):  # no caller is left to get the error
        raise asyncio.CancelledError from None
    code, words = _status(name, error)
    try:
        await context.abort(code, words, _trailers(error))
    except grpc.aio.InternalError as failure:
        if not has_left(failure):
            log.warning("method=%s: the error could not be sent to the caller: %s", name, failure)
        raise asyncio.CancelledError from None


def _trailers(error: Exception) -> tuple[tuple[str, str], ...]:
    """Return the metadata that tells what the status code does not."""
    match error:
        case TooFastError():
            return ((RETRY_KEY, f"{error.wait_s:.3f}"),)
        case LogUnavailableError():
            return ((NODE_AWAY_KEY, "1"),)
    return ()


def _status(name: str, error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return the status code and the message for ``error``; log an unexpected error."""
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
    """Wrap ``parse`` to return `MalformedError` instead of raising, as gRPC would log a traceback for each error."""

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
