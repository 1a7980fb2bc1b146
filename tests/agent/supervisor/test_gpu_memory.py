"""That an attempt ran out of GPU memory, from what it printed last."""

import os

import pytest
from ebbtide_agent.supervisor import gpu_memory

from tests.agent.supervisor.node import gpus, python

TORCH = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."


@pytest.mark.parametrize(
    "line",
    [
        TORCH,
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 23.65 GiB total capacity)",
        "RuntimeError: CUDA error: out of memory",
        "cuda.core.CUDAError: CUDA_ERROR_OUT_OF_MEMORY",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.",
    ],
)
def test_the_words_of_every_library_are_known(tmp_path, line):
    log = tmp_path / "output.log"
    log.write_text(f"step 1\n{line}\n")
    assert gpu_memory.ran_out(log)


@pytest.mark.parametrize("text", ["", "MemoryError\n", "Killed\n", "saved before memory was out\n", "out of memory\n"])
def test_other_words_say_nothing(tmp_path, text):
    log = tmp_path / "output.log"
    log.write_text(text)
    assert not gpu_memory.ran_out(log)


def test_only_the_end_of_a_long_log_counts(tmp_path):
    log = tmp_path / "output.log"
    log.write_text(TORCH + "\n" + "a step that went well\n" * 10_000)
    assert not gpu_memory.ran_out(log)
    with log.open("a") as file:
        file.write(TORCH)
    assert gpu_memory.ran_out(log)


def test_a_log_that_cannot_be_read_says_nothing(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "log")
    (tmp_path / "log").write_text(TORCH)
    for name in ("missing", "link", "pipe", "."):
        assert not gpu_memory.ran_out(tmp_path / name)


@pytest.mark.parametrize(
    ("code", "count", "ran_out"),
    [
        ("raise SystemExit(1)", 1, True),
        ("import os, sys; sys.stdout.flush(); os.abort()", 1, True),
        ("raise SystemExit(1)", 0, False),  # it had no GPU
        ("raise SystemExit(0)", 1, False),
        ("raise SystemExit(75)", 1, False),
    ],
)
async def test_an_attempt_that_failed_on_a_gpu_and_said_so_ran_out_of_memory(agent, code, count, ran_out):
    async with agent() as node:
        status = await node.run(python(f"print({TORCH!r}); {code}"), gpus=gpus(count, (1, 4)))
        assert status.exit.out_of_memory is ran_out


async def test_what_it_says_when_it_was_asked_to_leave_is_no_reason_to_run_it_again(agent):
    code = f"""
import signal, time
def fail(*_):
    print({TORCH!r})
    raise SystemExit(1)
signal.signal(signal.SIGTERM, fail)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
    async with agent() as node:
        await node.launch(python(code), gpus=gpus(1, (1, 4)))
        await node.running(line="ready")
        status = await node.stop()
        assert (status.exit.exit_code, status.exit.out_of_memory) == (1, False)
