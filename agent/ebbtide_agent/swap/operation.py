"""Runs one swap operation in a process of its own, so that a driver that hangs or crashes harms no other process.

The process gets its order as an argument, and writes JSON lines: each step before it begins, the result at last. It
is started anew, not forked, because the supervisor runs without site-packages, where NVML's module is.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ebbtide_machine.process import Identity

from ebbtide_agent.processes import linux
from ebbtide_agent.processes.isolated import package_roots
from ebbtide_agent.swap.cuda import CudaDriver, CudaUnavailable
from ebbtide_agent.swap.driver import CheckpointDriver
from ebbtide_agent.swap.fake import FakeDriver
from ebbtide_agent.swap.gpus import GpuError, open_gpus
from ebbtide_agent.swap.sequence import HARMLESS, Sequence, SwapOrder, SwapOutcome, SwapResult, SwapStep

_BOOT = """
import sys
sys.path += sys.argv[2:]
from ebbtide_agent.swap.operation import main
main(sys.argv[1])
"""
_LARGEST_READ = 64 * 1024
# Seconds that the steps before the first that changes something may take together.
HARMLESS_S = 30.0


class Operation:
    """A started operation. The code that reaps its process must call `ended`. Raises OSError."""

    def __init__(self, order: SwapOrder, deadline_s: float) -> None:
        self._order = order
        self._deadline_s = deadline_s
        self._began = time.monotonic()
        self._step = SwapStep.CHECK
        self._inbox = b""
        self._result: SwapResult | None = None
        self._late = False
        # Fake GPUs need nothing of site-packages, so their users need not wait for these.
        isolation = ["-I", "-S"] if order.fake_gpu_dir else ["-I"]
        command = [sys.executable, *isolation, "-c", _BOOT, json.dumps(order.to_json()), *package_roots()]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def deadline(self) -> float:
        """When the process is to be killed unless it has ended, on the monotonic clock."""
        return self._began + self._limit_s()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when there is something to `receive`, or the process has ended."""
        return self._output

    def receive(self) -> bool:
        """Take in what the process has written; return False when it will write no more."""
        data = self._read()
        self._take(data or b"")
        return data != b""

    def kill_if_late(self, now: float) -> None:
        """Kill the process once its deadline is over."""
        if now >= self.deadline and not self._late:
            self._late = True
            self.kill()

    def kill(self) -> None:
        """Kill the process."""
        if self._process.returncode is None and (process := Identity.of(self._process.pid)) is not None:
            process.signal(signal.SIGKILL)

    def ended(self, returncode: int) -> SwapResult:
        """Return the operation's result, now that its process was reaped."""
        self._process.returncode = returncode
        while data := self._read():
            self._take(data)
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._result is not None:
            return self._result
        # The last step tells whether the job is still as it was.
        why = f"the driver did not answer within {self._limit_s():g} s" if self._late else "its process ended"
        ending = SwapOutcome.UNTOUCHED if self._step in HARMLESS else SwapOutcome.BROKEN
        return SwapResult(ending, f"{why}, in step {self._step.value!r}", self._order.swapped)

    def abandon(self) -> SwapResult:
        """Kill the process and return the result now: it may hang in the driver, and not be reaped for a long time."""
        self.kill()
        return self.ended(-signal.SIGKILL)

    def _limit_s(self) -> float:
        # A harmless step is given up early, so that there is time for another way to stop the job.
        return min(self._deadline_s, HARMLESS_S) if self._step in HARMLESS else self._deadline_s

    def _read(self) -> bytes | None:
        """Return what there is to read now; None if there is nothing yet, empty at the end."""
        try:
            return os.read(self._output, _LARGEST_READ)
        except BlockingIOError:
            return None

    def _take(self, data: bytes) -> None:
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in map(json.loads, lines):
            if "step" in line:
                self._step = SwapStep(line["step"])
            else:
                self._result = SwapResult.from_json(line)


def carry_out(order: SwapOrder, deadline_s: float) -> SwapResult:
    """Carry out the order, wait for its end, at most until the deadline, and return the result. Raises OSError."""
    operation = Operation(order, deadline_s)
    while operation.receive():
        left_s = operation.deadline - time.monotonic()
        select.select([operation], [], [], max(0.0, left_s))
        operation.kill_if_late(time.monotonic())
    _, status = os.waitpid(operation.pid, 0)
    return operation.ended(os.waitstatus_to_exitcode(status))


def main(order: str) -> None:
    """Run the operation in its own process."""
    linux.die_with_parent()  # else a process that hangs would outlive a supervisor that was killed
    result = _run(SwapOrder.from_json(json.loads(order)))
    _say(result.to_json())


def _run(order: SwapOrder) -> SwapResult:
    try:
        driver: CheckpointDriver
        driver = FakeDriver(Path(order.fake_gpu_dir)) if order.fake_gpu_dir else CudaDriver()
        gpus = open_gpus(order.fake_gpu_dir)
    except (CudaUnavailable, GpuError, OSError, ValueError) as error:
        return SwapResult(SwapOutcome.UNTOUCHED, str(error), order.swapped)
    return Sequence(order, driver, gpus, lambda step: _say({"step": step})).run()


def _say(content: dict[str, Any]) -> None:
    os.write(1, json.dumps(content).encode() + b"\n")
