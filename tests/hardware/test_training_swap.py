"""A real PyTorch training is moved to host memory and back, and goes on as if nothing had been. Driver 580 and up."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pynvml
import pytest
from ebbtide_agent.processes import procfs
from ebbtide_agent.swap.gpus import open_gpus
from ebbtide_agent.swap.operation import carry_out
from ebbtide_agent.swap.sequence import SwapAction, SwapOrder, SwapOutcome, Swapped, SwapResult

from tests.hardware.results import record

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]

GIB = 1 << 30
_PATIENCE_S = 300
_SCRIPT = Path(__file__).with_name("training.py")
# As below a supervisor, the job is not the root itself.
_ROOT = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)"


class Training:
    """One training on the first GPU, below a root."""

    def __init__(self, directory: Path, ballast_bytes: int, *options: str, **environment: str) -> None:
        pynvml.nvmlInit()
        self.gpu = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
        self._directory = directory
        self._root = subprocess.Popen(
            [sys.executable, "-c", _ROOT, str(_SCRIPT), str(ballast_bytes), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": self.gpu, **environment},
        )
        assert self._hear().startswith("ready")
        (self.pid,) = procfs.children(self._root.pid)

    def steps(self, count: int) -> str:
        """Take so many steps; the loss after the last one, to the last bit."""
        self._root.stdin.write(f"{count}\n")
        self._root.stdin.flush()
        loss, ballast = self._hear().split()
        assert ballast == "intact"
        return loss

    def swap(self, do: SwapAction, swapped: Swapped) -> tuple[SwapResult, float]:
        """Suspend or resume; what came of it, and seconds."""
        began = time.monotonic()
        reservations = str(self._directory / "reservations")
        order = SwapOrder(do, self._root.pid, self.gpu, "", reservations, patience_s=60, swapped=swapped)
        result = carry_out(order, _PATIENCE_S)
        return result, time.monotonic() - began

    def end(self) -> None:
        self._root.stdin.close()
        self._root.wait(_PATIENCE_S)
        self._root.stdout.close()

    def _hear(self) -> str:
        ready, _, _ = select.select([self._root.stdout], [], [], _PATIENCE_S)
        assert ready, "the training does not answer"
        line = self._root.stdout.readline()
        assert line, f"the training has ended with status {self._root.wait(_PATIENCE_S)}"
        return line


def _swap_out_and_in(training: Training, name: str) -> None:
    free_before = open_gpus("").look(training.gpu).free_bytes
    out, out_s = training.swap(SwapAction.SUSPEND, Swapped())
    assert (out.ending, out.reason) == (SwapOutcome.DONE, "")
    look = open_gpus("").look(training.gpu)
    assert training.pid not in look.processes
    assert look.free_bytes > free_before
    back, in_s = training.swap(SwapAction.RESUME, out.swapped)
    assert (back.ending, back.reason) == (SwapOutcome.DONE, "")
    moved = out.swapped.mem_bytes
    record(
        name,
        bytes=moved,
        out_s=round(out_s, 3),
        in_s=round(in_s, 3),
        out_gb_per_s=round(moved / out_s / 1e9, 2),
        in_gb_per_s=round(moved / in_s / 1e9, 2),
        out_steps_s=out.parts_s,
        in_steps_s=back.parts_s,
    )


def _sizes() -> list[int]:
    """Those of 1, 10 and 40 GiB for which both memories have room."""
    pynvml.nvmlInit()
    on_gpu = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).free
    room = min(0.8 * on_gpu, 0.8 * psutil.virtual_memory().available) - 2 * GIB
    return [gib for gib in (1, 10, 40) if gib * GIB < room]


def test_a_training_goes_on_to_the_last_bit_and_the_speed_is_recorded(tmp_path):
    sizes = _sizes()
    assert sizes, "neither GPU nor host has room for 1 GiB"
    for gib in sizes:
        undisturbed = Training(tmp_path, gib * GIB)
        expected = [undisturbed.steps(20), undisturbed.steps(20)]
        undisturbed.end()
        training = Training(tmp_path, gib * GIB)
        try:
            found = [training.steps(20)]
            _swap_out_and_in(training, f"swap of a training, {gib} GiB")
            found.append(training.steps(20))
        finally:
            training.end()
        assert found == expected


@pytest.mark.parametrize(
    ("name", "options", "environment"),
    [
        ("expandable segments", (), {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ("a CUDA graph", ("graph",), {}),
        ("workers of a DataLoader", ("workers",), {}),
    ],
)
def test_it_does_so_with(tmp_path, name, options, environment):
    training = Training(tmp_path, GIB, *options, **environment)
    try:
        training.steps(20)
        _swap_out_and_in(training, f"swap of a training with {name}, 1 GiB")
        training.steps(20)
    finally:
        training.end()
