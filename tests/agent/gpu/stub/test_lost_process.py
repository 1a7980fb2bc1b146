"""NVML's library hangs, crashes or is not there in the process that asks it: on the C stub, under the real binding."""

import time

import pytest
from ebbtide_agent.gpu.process import NvmlProcess

SILENT = "NVML does not answer; asked again"


@pytest.fixture
def apart(state, load_stub, nvml_stub):
    """Opens the process that asks, over two GPUs."""
    state.describe({"uuid": "A"}, {"uuid": "B"}, driver="580.65.06", cuda="13.0")
    load_stub(nvml_stub)
    opened = []

    def open_process(**options) -> NvmlProcess:
        opened.append(NvmlProcess("auto", state.directory, **{"first_pause_s": 0.01, "again_s": 0.05} | options))
        return opened[-1]

    yield open_process
    for one in opened:
        one.close()


def _await(holds) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_the_process_says_is_what_the_library_says(state, apart):
    holder = state.start({"B": 3 << 30})
    backend = apart()
    assert (backend.kind, [gpu.uuid for gpu in backend.gpus()]) == ("nvml", ["A", "B"])
    assert (backend.driver().version, backend.driver().cuda) == ("580.65.06", "13.0")
    assert [[process.pid for process in backend.read(uuid).processes] for uuid in "AB"] == [[], [holder.pid]]


def test_a_call_of_the_library_that_never_returns_is_given_up_and_another_process_asks(state, apart):
    backend = apart(timeout_s=0.5)
    first = backend.pid
    state.faults(hang=["nvmlDeviceGetPowerUsage"])
    assert backend.read("A").unhealthy_reason == SILENT
    state.faults()
    _await(lambda: all(backend.read(uuid).healthy for uuid in "AB"))
    assert backend.pid not in (None, first)


def test_a_library_that_crashes_takes_nobody_with_it(state, apart):
    backend = apart()
    first = backend.pid
    state.faults(crash=["nvmlDeviceGetMemoryInfo"])
    assert backend.read("A").unhealthy_reason == SILENT
    assert [gpu.uuid for gpu in backend.gpus()] == ["A", "B"]
    state.faults()
    _await(lambda: all(backend.read(uuid).healthy for uuid in "AB"))
    assert backend.pid not in (None, first)


@pytest.mark.parametrize("code", [9, 18])
def test_a_driver_that_is_loaded_later_is_found(state, apart, code):
    state.faults(errors={"*": {"nvmlInit": code}})
    backend = apart()
    assert (backend.kind, backend.gpus()) == ("none", ())
    state.faults()
    _await(lambda: [gpu.uuid for gpu in backend.gpus()] == ["A", "B"])
    assert backend.kind == "nvml"
    assert backend.read("A").healthy


def test_a_driver_that_is_upgraded_under_us_is_found_by_a_process_that_starts_anew(state, apart):
    backend = apart(again_s=0.5)
    first = backend.pid
    state.faults(upgraded_to="615.10")
    assert backend.read("A").unhealthy_reason == "the driver was upgraded under us: reload it or reboot"
    assert not backend.read("B").gone
    _await(lambda: all(backend.read(uuid).healthy for uuid in "AB"))
    assert backend.pid != first


def test_a_gpu_that_fails_for_a_moment_costs_no_process_its_life(state, apart):
    backend = apart(again_s=60)
    first = backend.pid
    backend._opened_at -= 100  # as if it had been so for long
    state.faults(errors={"A": {"nvmlDeviceGetMemoryInfo": 999}})
    assert backend.read("A").unhealthy_reason == "Unknown Error"
    state.faults()
    assert backend.read("A").healthy
    assert backend.pid == first


def test_without_the_library_there_are_no_gpus(apart, monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH")
    backend = apart(again_s=60)
    assert (backend.kind, backend.gpus()) == ("none", ())
    assert backend.read("A").unhealthy_reason == "NVML Shared Library Not Found"


def test_an_xid_that_comes_while_nobody_reads_is_told_by_the_next_reading(state, apart):
    backend = apart()
    assert backend.read("A").healthy
    state.faults(xids=[{"uuid": "A", "xid": 48, "number": 1}])
    reading = backend.read("A")
    assert (reading.xids, reading.unhealthy_reason) == ((48,), "Xid 48: memory error that cannot be corrected")
    assert backend.read("B").healthy


@pytest.mark.parametrize(("code", "looks_again"), [(4, False), (15, True)])
def test_a_gpu_that_may_come_is_looked_for_and_one_that_is_not_ours_is_not(state, apart, code, looks_again):
    state.faults(errors={"A": {"nvmlDeviceGetHandleByIndex": code}})
    backend = apart(again_s=0.0)
    first = backend.pid
    assert [gpu.uuid for gpu in backend.gpus()] == ["B"]
    assert (backend.pid != first) is looks_again
