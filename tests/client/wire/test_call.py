"""A call on a socket against gRPC's own server: what arrives is what gRPC's own client gets."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest
from ebbtide_cli.masters.address import at_home
from ebbtide_cli.masters.grpc_calls import stub_at
from ebbtide_cli.wire import frames
from ebbtide_cli.wire.call import WINDOW, timeout_words
from ebbtide_cli.wire.status import CallFailed, CallStatus
from ebbtide_cli.wire.stub import SERVICE, SocketStub
from ebbtide_protos import home_socket
from ebbtide_protos.v1 import client_pb2, client_pb2_grpc, job_pb2

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
KEPT_ALIVE = (
    ("grpc.keepalive_time_ms", 100),
    ("grpc.keepalive_timeout_ms", 300),
    ("grpc.http2.ping_timeout_ms", 300),
    ("grpc.keepalive_permit_without_calls", 1),
)
PINGED = (
    ("grpc.keepalive_time_ms", 100),
    ("grpc.keepalive_timeout_ms", 60_000),
    ("grpc.http2.ping_timeout_ms", 60_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
WORDS = "50 % of ünïcode,\nin two lines: %41 ~ \x7f"
SECRET = (("authorization", "Bearer ebb_secret"),)


class Service(client_pb2_grpc.ClientServiceServicer):
    """Does what the request's job id says."""

    def __init__(self) -> None:
        self.left = threading.Event()  # the client of `wait`
        self.may_end = threading.Event()
        self.seen: dict[str, Any] = {}

    def ShowJob(self, request, context):
        self.seen |= {"metadata": dict(context.invocation_metadata()), "left_s": context.time_remaining()}
        match request.job_id.partition(" "):
            case "large", _, size:
                return client_pb2.Job(reason="x" * int(size))
            case "wait", *_:
                if not context.add_callback(self.left.set):  # the call is over already
                    self.left.set()
                self.left.wait(60)
            case "refuse", _, code:
                status = next(status for status in grpc.StatusCode if status.value[0] == int(code))
                context.set_trailing_metadata((("ebb-retry-after-s", "1.5"), ("bytes-bin", b"\0\xff")))
                context.abort(status, WORDS)
        return client_pb2.Job(job_id=request.job_id)

    def Submit(self, request, context):
        return client_pb2.SubmitReply(job_id=str(len(request.operation_id)))

    def ReadLogs(self, request, context):
        context.add_callback(self.left.set)
        count, _, size = request.job_id.partition(" ")
        for number in range(int(count)):
            yield client_pb2.LogChunk(attempt=number, data=b"x" * int(size or 0))
        if request.follow:
            self.may_end.wait(60)

    def UploadSnapshot(self, request_iterator, context):
        first = next(request_iterator)
        if first.snapshot.digest == "refused":
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not yours")
        self.seen["uploaded"] = sum(len(upload.data) for upload in request_iterator)
        yield client_pb2.SnapshotState(present=True)


@contextmanager
def by_socket(home: Path) -> Iterator[SocketStub]:
    with at_home(home, "the test").connecting() as connect:
        stub = SocketStub(connect, SECRET)
        try:
            yield stub
        finally:
            stub.close()


@contextmanager
def by_grpc(home: Path) -> Iterator[Any]:
    with stub_at(at_home(home, "the test")) as stub:
        yield stub


@contextmanager
def serving(service: Service, *options: tuple[str, int]) -> Iterator[Path]:
    with started(service, *options) as (_, home):
        yield home


@contextmanager
def started(service: Service, *options: tuple[str, int]) -> Iterator[tuple[grpc.Server, Path]]:
    server = grpc.server(ThreadPoolExecutor(8), options=options)
    client_pb2_grpc.add_ClientServiceServicer_to_server(service, server)
    with TemporaryDirectory(prefix="ebb-") as folder, home_socket.made(Path(folder)) as target:
        server.add_secure_port(target, grpc.local_server_credentials(grpc.LocalConnectionType.UDS))
        server.start()
        try:
            yield server, Path(folder)
        finally:
            service.left.set()
            service.may_end.set()
            server.stop(None).wait()


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def home(service) -> Iterator[Path]:
    with serving(service, *UNLIMITED) as folder:
        yield folder


@pytest.fixture
def stub(home) -> Iterator[SocketStub]:
    with by_socket(home) as stub:
        yield stub


def ask_job(stub, words: str, **more) -> client_pb2.Job:
    return stub.ShowJob(client_pb2.JobRequest(job_id=words), **more)


def failure(call: Callable[[], object]) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        call()
    return caught.value


def test_the_stub_has_the_methods_of_the_protocol_and_no_others(stub):
    assert all(callable(getattr(stub, method.name)) for method in SERVICE.methods)
    with pytest.raises(AttributeError, match="no method 'Guess'"):
        stub.Guess  # noqa: B018


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_380, WINDOW, 3 * WINDOW + 7, 40 << 20])
def test_a_reply_of_any_size_arrives_whole(stub, size):
    assert ask_job(stub, f"large {size}").reason == "x" * size


@pytest.mark.parametrize("size", [0, 16_379, 65_535, 1 << 20, 20 << 20])
def test_a_request_of_any_size_arrives_whole(stub, size):
    request = client_pb2.SubmitRequest(operation_id="x" * size)
    assert stub.Submit(request).job_id == str(size)


def test_a_stream_longer_than_the_window_arrives_in_order(stub):
    chunks = list(stub.ReadLogs(client_pb2.ReadLogsRequest(job_id=f"300 {WINDOW // 50}")))
    assert [chunk.attempt for chunk in chunks] == list(range(300))
    assert {len(chunk.data) for chunk in chunks} == {WINDOW // 50}


def test_a_stream_of_requests_longer_than_the_window_arrives(stub, service):
    uploads = (client_pb2.SnapshotUpload(data=b"x" * 100_000) for _ in range(201))
    [state] = stub.UploadSnapshot(uploads, timeout=60)
    assert state.present
    assert service.seen["uploaded"] == 20_000_000


def test_a_stream_of_requests_that_is_refused_is_not_sent_to_its_end(stub):
    sent = []

    def uploads():
        yield client_pb2.SnapshotUpload(snapshot=job_pb2.Snapshot(digest="refused"))
        for number in range(100_000):
            sent.append(number)
            yield client_pb2.SnapshotUpload(data=b"x" * 100_000)

    failed = failure(lambda: list(stub.UploadSnapshot(uploads(), timeout=60)))
    assert (failed.status, failed.words) == (CallStatus.PERMISSION_DENIED, "not yours")
    assert len(sent) < 1000


@pytest.mark.parametrize("dial", [by_socket, by_grpc])
@pytest.mark.parametrize("code", [code for code in CallStatus if code is not CallStatus.OK])
def test_a_refusal_has_the_same_status_words_and_trailers_as_in_the_library(home, dial, code):
    with dial(home) as stub:
        failed = failure(lambda: ask_job(stub, f"refuse {code.value}", timeout=30))
    assert (failed.status, failed.words) == (code, WORDS)
    assert failed.trailers["ebb-retry-after-s"] == "1.5"


@pytest.mark.parametrize("dial", [by_socket, by_grpc])
def test_a_request_over_the_server_s_limit_is_refused_with_its_words(service, dial):
    request = client_pb2.SubmitRequest(operation_id="x" * 2_000_000)
    with serving(service, ("grpc.max_receive_message_length", 1000)) as home, dial(home) as stub:
        failed = failure(lambda: stub.Submit(request, timeout=30))
    assert failed.status is CallStatus.RESOURCE_EXHAUSTED
    assert "larger than max" in failed.words


def test_every_status_of_the_library_has_the_same_number_here():
    assert {status.name: status.value for status in CallStatus} == {
        status.name: status.value[0] for status in grpc.StatusCode
    }


def test_the_token_and_the_time_that_is_left_are_sent(stub, service):
    ask_job(stub, "17", timeout=20)
    assert service.seen["metadata"]["authorization"] == "Bearer ebb_secret"
    assert 10 < service.seen["left_s"] <= 20
    ask_job(stub, "17")
    assert service.seen["left_s"] is None or service.seen["left_s"] > 1e6


def test_a_call_ends_in_its_time_even_if_the_server_does_not_answer(stub, service):
    began = time.monotonic()
    failed = failure(lambda: ask_job(stub, "wait", timeout=0.3))
    assert failed.status is CallStatus.DEADLINE_EXCEEDED
    assert 0.2 < time.monotonic() - began < 10
    while not service.seen:  # its time was over before the server had begun
        failure(lambda: ask_job(stub, "wait", timeout=0.3))
    assert service.left.wait(10)


def test_a_stream_that_nobody_reads_on_is_cancelled_at_the_server(home, service):
    with by_socket(home) as stub:
        replies = stub.ReadLogs(client_pb2.ReadLogsRequest(job_id="1", follow=True))
        assert next(replies).attempt == 0
        assert not service.left.is_set()
        del replies
        assert service.left.wait(10)


def test_the_end_of_the_connection_cancels_its_streams(home, service):
    with by_socket(home) as stub:
        replies = stub.ReadLogs(client_pb2.ReadLogsRequest(job_id="1", follow=True))
        next(replies)
    assert service.left.wait(10)


def test_another_thread_can_cancel_a_call_that_is_waited_for(stub, service):
    replies = stub.ReadLogs(client_pb2.ReadLogsRequest(job_id="1", follow=True))
    next(replies)
    threading.Timer(0.1, replies.cancel).start()
    assert failure(lambda: next(replies)).status is CallStatus.CANCELLED
    assert service.left.wait(10)
    replies.cancel()  # which changes nothing any more


def test_calls_may_go_on_beside_each_other(stub):
    with ThreadPoolExecutor(8) as pool:
        replies = stub.ReadLogs(client_pb2.ReadLogsRequest(job_id="2 10"))
        next(replies)
        found = list(pool.map(lambda number: ask_job(stub, str(number)).job_id, range(50)))
        assert next(replies).attempt == 1
    assert found == [str(number) for number in range(50)]


@pytest.mark.parametrize("dial", [by_socket, by_grpc])
def test_a_server_that_stops_ends_a_stream_and_says_why(service, dial):
    with started(service) as (server, home), dial(home) as stub:
        replies = stub.ReadLogs(client_pb2.ReadLogsRequest(job_id="1", follow=True))
        next(replies)
        threading.Timer(0.1, server.stop, (None,)).start()
        failed = failure(lambda: next(replies))
    assert (failed.status, failed.words) == (CallStatus.UNAVAILABLE, "Cancelling all calls")


def test_a_call_after_the_server_went_away_says_so(service):
    with ExitStack() as stack:
        with serving(service) as home:
            stub = stack.enter_context(by_socket(home))
            ask_job(stub, "17")
        assert failure(lambda: ask_job(stub, "17")).status is CallStatus.UNAVAILABLE


class Answering:
    """A connection on which the service may end once several pings were answered; each was, before the next came."""

    def __init__(self, connection: Any, service: Service) -> None:
        self._connection, self._service, self._answers = connection, service, 0

    def sendall(self, data: bytes) -> None:
        self._connection.sendall(data)
        self._answers += bytes(data[3:5]) == bytes((frames.PING, frames.ACK))
        if self._answers >= 5:
            self._service.may_end.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_a_quiet_stream_outlives_the_pings_of_a_server_that_wants_them_answered(service):
    with serving(service, *PINGED) as home, at_home(home, "the test").connecting() as connect:
        stub = SocketStub(lambda: Answering(connect(), service), SECRET)
        replies = stub.ReadLogs(client_pb2.ReadLogsRequest(job_id="1", follow=True))
        next(replies)
        assert next(replies, None) is None
        stub.close()


def test_a_reader_that_pauses_for_longer_than_a_server_waits_is_told_that_the_stream_is_lost(service):
    with serving(service, *KEPT_ALIVE) as home, by_socket(home) as stub:
        replies = stub.ReadLogs(client_pb2.ReadLogsRequest(job_id="1", follow=True))

        def pausing() -> None:
            for _ in replies:
                assert service.left.wait(20)  # the server has waited long enough for the answer to its ping

        assert failure(pausing).status is CallStatus.UNAVAILABLE


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (30.0, "30000m"),
        (0.0001, "1m"),
        (0.0, "1m"),
        (1.0005, "1001m"),
        (99_999.999, "99999999m"),
        (100_000.0, "100000S"),
        (1e9, "16666667M"),
        (1e11, "27777778H"),
        (1e15, "99999999H"),
    ],
)
def test_a_time_is_written_with_eight_digits_at_most_and_never_shortened(seconds, words):
    assert timeout_words(seconds) == words
