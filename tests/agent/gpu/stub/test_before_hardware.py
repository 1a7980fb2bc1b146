"""What is asked of hardware is asked of stubs of NVML and CUDA first: there may be no second try on a lent GPU."""

import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from benchmarks import gpu_notes
from tests.agent.gpu.stub.state import GIB

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.fixture
def gpu(state, load_stub, nvml_stub, cuda_stub):
    state.describe({"uuid": "GPU-1", "mem_bytes": 8 * GIB, "persistence": True}, driver="580.65.06", cuda="13.0")
    load_stub(nvml_stub)
    return gpu_notes.Gpu()


def test_a_restore_on_a_full_gpu_is_told_with_what_comes_after_it(gpu):
    answer = gpu_notes.what_a_full_gpu_does(gpu)
    out, full, again = answer.split("; ")
    assert out == "lock ok, checkpoint ok"
    assert full == "restore on a full GPU 2"
    assert again == "with room again: restore 304, unlock 401, state FAILED"


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (gpu_notes.who_may_call, "lock ok, checkpoint ok, restore ok, unlock ok; memory as it was"),
        (gpu_notes.what_initialising_does, "cuInit 0: is not listed by NVML; with it alive, and persistence mode on"),
        (
            gpu_notes.what_freezing_does,
            "checkpoint ok, SIGSTOP, SIGCONT, restore ok, unlock ok; memory as it was",
        ),
    ],
)
def test_a_question_is_answered(gpu, ask, words):
    assert words in ask(gpu)


def test_without_a_gpu_it_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlInit", _no_driver)
    monkeypatch.setattr("sys.argv", ["gpu_notes.py"])
    assert gpu_notes.main() == 1
    assert capsys.readouterr().err == "gpu_notes: no GPU here: Driver Not Loaded\n"


def _no_driver() -> None:
    raise pynvml.NVMLError(9)


def test_what_is_tested_of_swapping_on_hardware_passes_on_stubs(gpu):
    tests = "tests/agent/swap/test_real_swap.py"
    chosen = "memory_leaves_the_gpu or second_suspend"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", tests, "-k", chosen]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
