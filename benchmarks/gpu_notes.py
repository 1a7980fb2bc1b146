"""What only a real GPU can tell: answers the open questions of docs/explanation/gpu-notes.md, as a table for it.

    python benchmarks/gpu_notes.py                  # some minutes; driver 580 or later, an idle GPU
    python benchmarks/gpu_notes.py --only 1 5

Needs PyTorch (`.[examples]`) for questions 2 and 4, and root and a writable control group for 6. Nothing is changed:
no mode is set, no GPU is reset, and every process that was started is ended.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pynvml

REPOSITORY: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.agent.gpu.cuda_process import CudaProcess  # noqa: E402
from tests.hardware.results import machine  # noqa: E402

MIB: Final = 1 << 20
GIB: Final = 1 << 30
CALL_TIMEOUT_S: Final = 180.0
# One call of the driver, in a process of its own: it may hang. Prints `ok`, the state asked for, or CUDA's code.
CALL: Final = """
import sys
from ebbtide_agent.swap.cuda import CudaDriver
from ebbtide_agent.swap.driver import DriverError
driver, call, pid = CudaDriver(), sys.argv[1], int(sys.argv[2])
try:
    if call == "restore":
        driver.initialise()
    said = driver.lock(pid, 10.0) if call == "lock" else getattr(driver, call)(pid)
    print("ok" if said is None else said.name)
except DriverError as error:
    print(error.code)
"""
# Starts CUDA, and makes no context.
INITIALISED: Final = """
import ctypes, sys
print(ctypes.CDLL("libcuda.so.1").cuInit(0), flush=True)
sys.stdin.read()
"""


class Gpu:
    """The first GPU of this machine, and what is asked of it."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.uuid: str = pynvml.nvmlDeviceGetUUID(self._handle)

    def free_bytes(self) -> int:
        """What nobody holds."""
        return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2).free)

    def lists(self, pid: int) -> bool:
        """Whether NVML says that this process computes on it."""
        return pid in {entry.pid for entry in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(self._handle)}

    def persistence(self) -> str:
        """Whether persistence mode is on."""
        try:
            return "on" if pynvml.nvmlDeviceGetPersistenceMode(self._handle) else "off"
        except pynvml.NVMLError as error:
            return str(error)

    @contextmanager
    def process(self, mem_bytes: int) -> Iterator[CudaProcess]:
        """A process that holds so much of it."""
        process = CudaProcess(self.uuid)
        try:
            code = process.start_code or process.allocate(mem_bytes)
            if code:
                raise RuntimeError(f"CUDA says {code} to a process that takes {mem_bytes} bytes")
            yield process
        finally:
            os.kill(process.pid, signal.SIGKILL)  # one that cannot be restored ends in no other way
            process.end()


def call(name: str, pid: int) -> str:
    """What the driver says to one call, or that it did not answer."""
    command = [sys.executable, "-c", CALL, name, str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {CALL_TIMEOUT_S:g} s"
    words = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return words[-1] if words else f"ended with {done.returncode}"


def all_of(pid: int, *names: str) -> str:
    """What the driver says to several calls, one after the other."""
    return ", ".join(f"{name} {call(name, pid)}" for name in names)


def who_may_call(gpu: Gpu) -> str:
    """Question 1."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    caller = f"uid {os.getuid()}, ptrace_scope {scope.read_text().strip() if scope.exists() else 'not there'}"
    with gpu.process(GIB) as process:
        said = all_of(process.pid, "lock", "checkpoint", "restore", "unlock")
        intact = process.is_intact()
    return f"a sibling of the process, {caller}: {said}; memory {'as it was' if intact else 'CHANGED'}"


def what_initialising_does(gpu: Gpu) -> str:
    """Question 3."""
    helper = subprocess.Popen([sys.executable, "-c", INITIALISED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert helper.stdout is not None
    code = int(helper.stdout.readline())
    listed = gpu.lists(helper.pid)
    with gpu.process(GIB) as process:
        said = all_of(process.pid, "lock", "checkpoint", "restore", "unlock")
    helper.communicate()
    shown = "is listed" if listed else "is not listed"
    return f"cuInit {code}: {shown} by NVML; with it alive, and persistence mode {gpu.persistence()}: {said}"


def what_freezing_does(gpu: Gpu) -> str:
    """Question 4, without PyTorch."""
    with gpu.process(GIB) as process:
        out = all_of(process.pid, "lock", "checkpoint")
        os.kill(process.pid, signal.SIGSTOP)
        os.kill(process.pid, signal.SIGCONT)
        back = all_of(process.pid, "restore", "unlock")
        intact = process.is_intact()
    return f"{out}, SIGSTOP, SIGCONT, {back}; memory {'as it was' if intact else 'CHANGED'}"


def what_a_full_gpu_does(gpu: Gpu) -> str:
    """Question 5."""
    with gpu.process(2 * GIB) as process:
        out = all_of(process.pid, "lock", "checkpoint")
        with gpu.process(gpu.free_bytes() - 900 * MIB):
            full = call("restore", process.pid)
        again = all_of(process.pid, "restore", "unlock", "state")
    return f"{out}; restore on a full GPU {full}; with room again: {again}"


def by_tests(pattern: str) -> Callable[[Gpu], str]:
    """Answers what the tests for hardware record."""

    def answer(_: Gpu) -> str:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "results.json")
            tests = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/hardware", "-k", pattern]
            environment = {**os.environ, "EBB_GPU_RESULTS": str(path)}
            done = subprocess.run(tests, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
            results = json.loads(path.read_text()) if path.exists() else {}
        facts = [f"{name}: {in_words(found)}" for name, found in results.items()]
        return "; ".join([*facts, done.stdout.strip().splitlines()[-1]])

    return answer


def in_words(found: dict[str, Any]) -> str:
    """What one result says beside the machine."""
    if "bytes" not in found:
        return ", ".join(f"{name} {value}" for name, value in found.items() if name not in machine())
    out, back = (f"{found[f'{way}_s']} s ({found[f'{way}_gb_per_s']} GB/s)" for way in ("out", "in"))
    return f"{found['bytes'] / GIB:.1f} GiB, out {out}, back {back}"


QUESTIONS: Final[dict[int, tuple[str, Callable[[Gpu], str]]]] = {
    1: ("Who may lock, checkpoint, restore and unlock a process", who_may_call),
    2: (
        "How fast a PyTorch training moves; expandable segments, CUDA graphs, workers",
        by_tests("training or does_so"),
    ),
    3: ("What cuInit in a helper does", what_initialising_does),
    4: ("SIGSTOP and SIGCONT while checkpointed", what_freezing_does),
    5: ("Restore on a full GPU", what_a_full_gpu_does),
    6: ("nvmlDeviceSetMemoryLimits_v1, with and without MPS", by_tests("memory_limits")),
}


def answered(question: int, gpu: Gpu) -> str:
    """A row of the table."""
    asked, ask = QUESTIONS[question]
    try:
        answer = ask(gpu)
    except (AssertionError, OSError, RuntimeError, ValueError, pynvml.NVMLError) as error:
        answer = f"not answered: {error}"
    return f"| {question}. {asked} | {' '.join(answer.replace('|', '/').split())} |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, nargs="+", choices=QUESTIONS, help="these questions alone")
    questions = parser.parse_args().only or list(QUESTIONS)
    try:
        gpu = Gpu()
    except pynvml.NVMLError as error:
        print(f"gpu_notes: no GPU here: {error}", file=sys.stderr)
        return 1
    print(", ".join(f"{name} {value}" for name, value in machine().items()), end="\n\n")
    print("| question | answer |", "|---|---|", sep="\n")
    for question in questions:
        print(answered(question, gpu), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
