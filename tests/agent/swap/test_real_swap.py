"""The same order on a real GPU: what the stubs cannot know. Needs a driver of at least 580 and nobody else's job."""

import subprocess
import sys
import time

import pytest
from ebbtide_agent.processes import procfs
from ebbtide_agent.swap.gpus import open_gpus
from ebbtide_agent.swap.operation import carry_out
from ebbtide_agent.swap.sequence import SwapAction, SwapOrder, SwapOutcome, Swapped, SwapResult

pytestmark = pytest.mark.gpu

MIB = 1024 * 1024
# Computes on one GPU without any package: it fills its memory with a pattern, and checks it in every round.
_JOB = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def ask(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"
size = int(sys.argv[1])
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
ask("cuInit", 0)
ask("cuDeviceGet", ctypes.byref(device), 0)
ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
ask("cuCtxSetCurrent", context)
ask("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
ask("cuMemsetD8_v2", memory, ctypes.c_ubyte(0xA5), ctypes.c_size_t(size))
sample = (ctypes.c_ubyte * 4096)()
print("ready", flush=True)
for line in sys.stdin:
    for offset in (0, size // 2, size - 4096):
        ask("cuMemcpyDtoH_v2", sample, ctypes.c_uint64(memory.value + offset), ctypes.c_size_t(4096))
        assert set(sample) == {0xA5}, "the memory is not what it was"
    print("intact", flush=True)
"""
# As below a supervisor, the job is not the root itself.
_ROOT = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:]]).returncode)"


class Job:
    """A process that holds so many MiB of the first GPU."""

    def __init__(self, directory, mem_mib: int) -> None:
        self.gpus = open_gpus("")
        self.directory = directory
        command = [sys.executable, "-c", _ROOT, _JOB, str(mem_mib * MIB)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        self.pid = procfs.children(self.process.pid)[0]
        self.gpu = self._find()

    def _find(self) -> str:
        import pynvml

        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            if any(entry.pid == self.pid for entry in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)):
                return pynvml.nvmlDeviceGetUUID(handle)
        raise AssertionError("NVML does not list the process: is this another pid namespace than the driver's?")

    def carry_out(self, do: SwapAction, swapped: Swapped | None = None) -> SwapResult:
        order = SwapOrder(do, self.process.pid, self.gpu, "", str(self.directory), swapped=swapped or Swapped())
        return carry_out(order, 180)

    def is_intact(self) -> bool:
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        return self.process.stdout.readline() == "intact\n"

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path, 2048)
    yield job
    job.end()


def test_memory_leaves_the_gpu_and_comes_back_as_it_was(job):
    assert job.is_intact()
    before = job.gpus.look(job.gpu)
    out = job.carry_out(SwapAction.SUSPEND)
    assert (out.ending, out.reason) == (SwapOutcome.DONE, "")
    meanwhile = job.gpus.look(job.gpu)
    assert job.pid not in meanwhile.processes
    assert meanwhile.free_bytes - before.free_bytes >= 2048 * MIB
    back = job.carry_out(SwapAction.RESUME, out.swapped)
    assert (back.ending, back.reason) == (SwapOutcome.DONE, "")
    assert job.pid in job.gpus.look(job.gpu).processes
    assert job.is_intact()
    print("seconds by step:", out.parts_s, back.parts_s)


def test_ten_times_change_nothing(job):
    for _ in range(10):
        out = job.carry_out(SwapAction.SUSPEND)
        assert out.ending is SwapOutcome.DONE, out.reason
        assert job.carry_out(SwapAction.RESUME, out.swapped).ending is SwapOutcome.DONE
    assert job.is_intact()


def test_a_second_suspend_is_refused_while_the_job_is_out(job):
    out = job.carry_out(SwapAction.SUSPEND)
    assert out.ending is SwapOutcome.DONE, out.reason
    again = job.carry_out(SwapAction.SUSPEND)
    # It is on no GPU, so there is nothing to move, and it is frozen as before.
    assert (again.ending, again.swapped.process) == (SwapOutcome.DONE, None)
    assert job.carry_out(SwapAction.RESUME, out.swapped).ending is SwapOutcome.DONE
    assert job.is_intact()


def test_the_speed_of_ten_gigabytes_is_told(tmp_path):
    job = Job(tmp_path, 10 * 1024)
    try:
        started = time.monotonic()
        out = job.carry_out(SwapAction.SUSPEND)
        between = time.monotonic()
        back = job.carry_out(SwapAction.RESUME, out.swapped)
        print(
            f"10 GiB out {between - started:.2f} s, back {time.monotonic() - between:.2f} s", out.parts_s, back.parts_s
        )
        assert (out.ending, back.ending) == (SwapOutcome.DONE, SwapOutcome.DONE)
        assert job.is_intact()
    finally:
        job.end()
