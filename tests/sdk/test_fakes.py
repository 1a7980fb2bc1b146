"""`ebbtide.fake_allocate` where there is nobody to ask, or somebody who answers nonsense."""

import json
import socket
import threading

import ebbtide
import pytest
from ebbtide import channel


@pytest.fixture
def supervisor(tmp_path, monkeypatch):
    """Answers the next request with what it is given; returns the request."""
    monkeypatch.setenv("EBB_SOCKET", str(tmp_path / "job.sock"))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    requests = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "job.sock"))

        def serve(answer):
            request, sender = listener.recvfrom(4096)
            requests.append(json.loads(request))
            listener.sendto(answer, sender)

        def answering(answer):
            thread = threading.Thread(target=serve, args=(answer,))
            thread.start()
            return thread, requests

        yield answering


def test_outside_ebbtide_nothing_happens(monkeypatch):
    monkeypatch.delenv("EBB_SOCKET", raising=False)
    assert ebbtide.fake_allocate(1 << 40) is False


def test_a_supervisor_that_is_gone_is_no_reason_to_fail(monkeypatch, tmp_path):
    monkeypatch.setenv("EBB_SOCKET", str(tmp_path / "nobody"))
    assert ebbtide.fake_allocate(1) is False


def test_a_supervisor_that_never_answers_is_waited_for_no_longer_than_patience(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as silent:
        silent.bind(str(tmp_path / "silent"))
        assert channel.ask(str(tmp_path / "silent"), {}, timeout_s=0.01) is None


@pytest.mark.parametrize(
    ("answer", "held"), [(b'{"held": true}', True), (b"{}", False), (b"nonsense", False), (b"[1]", False)]
)
def test_only_a_clear_answer_counts(supervisor, answer, held):
    thread, requests = supervisor(answer)
    assert ebbtide.fake_allocate(5, gpu=1) is held
    thread.join()
    assert (requests[0]["kind"], requests[0]["bytes"], requests[0]["gpu"]) == ("fake_allocate", 5, 1)


def test_a_rank_speaks_of_its_own_gpu(supervisor, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    thread, requests = supervisor(b'{"held": true}')
    ebbtide.fake_allocate(5)
    thread.join()
    assert requests[0]["gpu"] == 3


def test_out_of_memory_is_a_runtime_error_that_reads_as_pytorchs(supervisor):
    thread, _ = supervisor(json.dumps({"free": 1 << 30, "total": 24 << 30, "gpu": 0}).encode())
    with pytest.raises(RuntimeError, match=r"^CUDA out of memory\. Tried to allocate 2\.00 GiB\.") as refused:
        ebbtide.fake_allocate(2 << 30)
    thread.join()
    assert isinstance(refused.value, ebbtide.OutOfMemory)


def test_less_than_nothing_cannot_be_held():
    with pytest.raises(ValueError, match="at least 0"):
        ebbtide.fake_allocate(-1)
