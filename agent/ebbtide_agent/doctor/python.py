"""Checks whether the PyTorch of the Python that jobs would use sees the GPUs."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass

from ebbtide_agent.doctor.finding import Finding, note, ok, problem

TORCH_S = 40.0
_SCRIPT = """
import importlib.util, json
if importlib.util.find_spec("torch") is None:
    print("null")
else:
    import torch
    print(json.dumps([torch.__version__, torch.version.cuda or torch.version.hip, torch.cuda.device_count()]))
"""


@dataclass(frozen=True, slots=True)
class Torch:
    """What a PyTorch says of itself; `cuda` is empty if it was built without CUDA."""

    version: str
    cuda: str
    gpus: int


class NoPythonAnswer(Exception):
    """The interpreter did not answer; the message says why."""


def examine(gpus: int, fake: bool, python: str = "", timeout_s: float = TORCH_S) -> Finding:
    """Check the interpreter (default: `python` on PATH) in a process, which is killed if it does not answer in time."""
    python = python or shutil.which("python") or sys.executable
    try:
        found = ask(python, timeout_s)
    except NoPythonAnswer as error:
        text = f"{python}: {error}"
        return problem("PyTorch", text, f"try it: {python} -c 'import torch; print(torch.cuda.device_count())'")
    return judge(found, gpus, fake, python)


def judge(torch: Torch | None, gpus: int, fake: bool, python: str) -> Finding:
    """Judge this interpreter's PyTorch by the number of GPUs that NVML shows."""
    if torch is None:
        return note("PyTorch", f"{python} has none", "activate the environment of your jobs, and ask again")
    text = f"{torch.version} of {python}"
    if fake or gpus == 0:
        return ok("PyTorch", f"{text}, computes on the CPU here")
    if not torch.cuda:
        advice = f"{python} -m pip install torch --index-url https://download.pytorch.org/whl/cu128"
        return problem("PyTorch", f"{text} is built without CUDA", advice)
    if torch.gpus < gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        advice = f"nvidia-smi; does CUDA {torch.cuda} of this PyTorch fit the driver?"
        if visible is not None:
            advice = f"unset CUDA_VISIBLE_DEVICES (it is {visible!r})"
        return problem("PyTorch", f"{text} sees {torch.gpus} of {gpus} GPUs", advice)
    return ok("PyTorch", f"{text}, CUDA {torch.cuda}, sees {torch.gpus} GPUs")


def ask(python: str, timeout_s: float) -> Torch | None:
    """Import torch in this interpreter and return what it says; None if it is not installed. Raises NoPythonAnswer."""
    try:
        # In another directory, so that no file of the user's is taken for a module; in a group of its own, for killpg.
        process = subprocess.Popen(
            [python, "-c", _SCRIPT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise NoPythonAnswer(error.strerror or str(error)) from None
    try:
        out, complaint = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise NoPythonAnswer(f"import torch did not end within {timeout_s:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    try:
        answer = json.loads(out)
        return None if answer is None else Torch(str(answer[0]), str(answer[1] or ""), int(answer[2]))
    except (ValueError, LookupError, TypeError):
        last = (complaint.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise NoPythonAnswer(f"import torch: {last[:200]}") from None
