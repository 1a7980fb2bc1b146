"""What the master's log holds of gRPC's own troubles."""

import asyncio
import logging
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from ebbtide_master.calls.edge import GRPC_LOG, _abort, has_left, is_worth_a_line
from grpc._cython import cygrpc

METHOD = "/ebbtide.v1.Tested/Stream"
LARGE = 64 << 20
"""More bytes than can be on their way to a caller who has not read them."""


@pytest.fixture
def told(caplog):
    """The lines that the log has of failures, with what gRPC itself logs let through the filter."""
    assert cygrpc.__name__ == GRPC_LOG
    grpcs = logging.getLogger(GRPC_LOG)
    grpcs.addFilter(is_worth_a_line)
    caplog.set_level(logging.DEBUG, "ebbtide_master.calls.edge")
    yield lambda: [(line.levelname, line.getMessage(), bool(line.exc_info)) for line in caplog.records if failed(line)]
    grpcs.removeFilter(is_worth_a_line)


def failed(line):
    return line.name == "ebbtide_master.calls.edge" or (line.name == GRPC_LOG and line.levelno > logging.DEBUG)


@asynccontextmanager
async def serving(method):
    """A server with one method that streams; yields its address."""
    server = grpc.aio.server()
    _, service, name = METHOD.split("/")
    methods = {name: grpc.unary_stream_rpc_method_handler(method)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def call(address, channels):
    """Call the method, until it ends or somebody closes the channel."""
    with grpc.insecure_channel(address) as channel:
        channels.append(channel)
        try:
            for _ in channel.unary_stream(METHOD)(b""):
                pass
        except (grpc.RpcError, ValueError):
            pass


async def until_told(told):
    async with asyncio.timeout(30):
        while not told():
            await asyncio.sleep(0.01)


async def test_a_caller_who_leaves_while_the_answer_is_sent_is_a_line_of_the_debug_log(told):
    """Which of the two is heard first, that it left or that the answer cannot be sent, is up to the library."""
    channels, errors = [], asyncio.Queue()

    async def leaves(request, context):
        sending = asyncio.ensure_future(context.write(bytes(LARGE)))
        await asyncio.sleep(0)  # it has begun
        channels[0].close()
        while not sending.done():
            with suppress(asyncio.CancelledError, cygrpc.ExecuteBatchError):
                await asyncio.shield(sending)
        errors.put_nowait(sending.exception())
        raise asyncio.CancelledError  # as the server's own methods end then: there is nobody to send a status to

    async with serving(leaves) as address:
        caller = asyncio.create_task(asyncio.to_thread(call, address, channels))
        error = await asyncio.wait_for(errors.get(), 30)
        await caller
    try:
        raise error
    except cygrpc.ExecuteBatchError:
        logging.getLogger(GRPC_LOG).exception("ExecuteBatchError raised in core by servicer method [%s]", METHOD)
    [(level, words, is_traceback)] = told()
    assert (level, is_traceback) == ("DEBUG", False)
    assert words.startswith("a caller left just while it was answered: ")


async def test_an_answer_that_grpc_does_not_take_is_told_in_one_line(told):
    channels = []

    async def sends_twice_at_once(request, context):
        await asyncio.gather(context.write(b"x"), context.write(b"y"))

    async with serving(sends_twice_at_once) as address:
        caller = asyncio.create_task(asyncio.to_thread(call, address, channels))
        await until_told(told)
        channels[0].close()
        await caller
    [(level, words, is_traceback)] = told()
    assert (level, is_traceback) == ("WARNING", False)
    assert METHOD in words
    assert "GRPC_CALL_ERROR_TOO_MANY_OPERATIONS" in words


def test_any_other_error_is_told_as_grpc_tells_it(told):
    try:
        raise OSError("broken")
    except OSError:
        logging.getLogger(GRPC_LOG).exception("raised in core by servicer method [%s]", METHOD)
    assert told() == [("ERROR", f"raised in core by servicer method [{METHOD}]", True)]


class Context:
    """Of a call whose end cannot be told, because of `failure` if there is one."""

    def __init__(self, failure=None):
        self.failure, self.codes = failure, []

    async def abort(self, code, words, later):
        self.codes.append(code)
        if self.failure is not None:
            raise self.failure


LEFT = cygrpc.ExecuteBatchError('Failed "execute_batch": (SendMessageOperation,)')
NOT_TAKEN = cygrpc.ExecuteBatchError("Failed grpc_call_start_batch: 8 with grpc_call_error value: 'TOO_MANY'")


async def test_nobody_is_told_of_a_failure_if_they_have_left(told):
    context = Context()
    with pytest.raises(asyncio.CancelledError):
        await _abort(METHOD, context, LEFT)
    assert (context.codes, told(), has_left(LEFT)) == ([], [], True)


async def test_a_caller_is_told_of_an_answer_that_grpc_did_not_take(told):
    context = Context()
    await _abort(METHOD, context, NOT_TAKEN)
    assert (context.codes, has_left(NOT_TAKEN)) == ([grpc.StatusCode.INTERNAL], False)
    assert told() == [("ERROR", f"method={METHOD} failed", True)]


@pytest.mark.parametrize(("failure", "lines"), [(LEFT, 0), (NOT_TAKEN, 1)])
async def test_a_caller_who_cannot_be_told_is_a_line_unless_they_left(told, failure, lines):
    with pytest.raises(asyncio.CancelledError):
        await _abort(METHOD, Context(failure), grpc.aio.UsageError("any"))
    assert [level for level, *_ in told()] == ["ERROR", *["WARNING"] * lines]
