"""What only the driver's own functions can show: their layouts, their limits, and who may not be swapped."""

import time

from ebbtide_agent.swap.driver import NOT_READY
from ebbtide_agent.swap.sequence import SwapOutcome

from tests.agent.swap.worlds import GIB, HANG


def test_the_timeout_of_a_lock_reaches_the_driver(stub_world):
    job = stub_world.job(GIB)
    stub_world.fault("lock", NOT_READY)
    started = time.monotonic()
    result = job.suspend(lock_timeout_s=0.7)
    assert time.monotonic() - started >= 0.7
    assert result.reason == "the driver failed to lock the process: not ready in time (600)"


def test_an_old_driver_is_refused(stub_world):
    job = stub_world.job(GIB)
    (stub_world.stub_dir / "driver").write_text("570.158.01")
    result = job.suspend()
    assert (result.ending, result.reason) == (SwapOutcome.UNTOUCHED, "driver 570 is too old to swap: it takes 580")


def test_a_process_behind_mps_is_refused(stub_world):
    job = stub_world.job(GIB)
    stub_world.hold(job.pids[0], GIB, mps=True)
    assert "through MPS" in job.suspend().reason


def test_a_process_of_unknown_size_is_refused(stub_world):
    job = stub_world.job(GIB)
    stub_world.hold(job.pids[0], -1)
    assert "does not say how much GPU memory" in job.suspend().reason


def test_a_process_that_somebody_else_has_locked_is_left_to_them(stub_world):
    job = stub_world.job(GIB)
    stub_world.hold(job.pids[0], GIB, state=1)
    result = job.suspend()
    assert result.ending is SwapOutcome.UNTOUCHED
    assert "is LOCKED already" in result.reason
    assert stub_world.state(job.pids[0]) == "LOCKED"


def test_a_machine_without_a_driver_says_so(stub_world, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    result = stub_world.job(GIB).suspend()
    assert result.ending is SwapOutcome.UNTOUCHED
    assert result.reason.startswith("no CUDA driver that can checkpoint: libcuda.so.1")


def test_a_driver_without_these_functions_says_so(stub_world, libraries, tmp_path, monkeypatch):
    (tmp_path / "libcuda.so.1").symlink_to(libraries / "libnvidia-ml.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:{libraries}")
    result = stub_world.job(GIB).suspend()
    assert result.ending is SwapOutcome.UNTOUCHED
    assert "undefined symbol: cuInit" in result.reason


def test_an_nvml_that_hangs_does_no_harm(stub_world):
    job = stub_world.job(GIB)
    stub_world.fault("nvml", HANG)
    result = job.suspend(deadline_s=1)
    assert result.ending is SwapOutcome.UNTOUCHED
    assert "within 1 s" in result.reason


def test_a_driver_that_does_not_start_leaves_the_job_swapped_out(stub_world):
    job = stub_world.job(GIB)
    out = job.suspend()
    stub_world.fault("init", 3)
    assert job.resume(out.swapped).ending is SwapOutcome.UNTOUCHED
    assert job.frozen()
