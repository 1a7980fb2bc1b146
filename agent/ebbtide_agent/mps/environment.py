"""Builds the variables of a job with a share of a GPU: those of its MPS server, or a limit for PyTorch's allocator."""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ebbtide_agent.contract.intent import AllocatedGpu
from ebbtide_agent.mps.control import MpsControl

_MIB = 1024 * 1024
# What the driver takes for a process beside its allocations; PyTorch's limit does not see it.
_CONTEXT_BYTES = 512 * _MIB
# The first PyTorch that knows the option; earlier ones refuse to start with it.
_FIRST_TORCH = (2, 10)
_OPTION = "per_process_memory_fraction"


def mps_environment(control: MpsControl, gpu: AllocatedGpu, processes: int) -> dict[str, str]:
    """Return variables that make the processes clients of this daemon, each with its part of the share and memory.

    MPS limits each process for itself. The server sees one GPU only, so the clients' GPU has number 0 there.
    """
    mem_mib = gpu.mem_bytes // processes // _MIB
    percent = -(-100 * gpu.numerator // (gpu.denominator * processes))
    return {
        **control.environment,
        **({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={mem_mib}M"} if mem_mib else {}),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent),
    }


def without_mps(directory: Path) -> dict[str, str]:
    """Return variables that keep processes out of any MPS server, even one that runs where CUDA looks by default."""
    return {"CUDA_MPS_PIPE_DIRECTORY": str(directory / "none")}


def allocator_environment(
    gpu: AllocatedGpu, total_bytes: int, env: Mapping[str, str], processes: int, version: Sequence[int] | None
) -> dict[str, str]:
    """Return a variable that keeps PyTorch's allocator to the job's memory on this GPU of `total_bytes`.

    The option is added to those that the user has set. The result is empty if the user has set it, or if the job's
    PyTorch would not understand it; `version` is that PyTorch's, or None or empty if it is unknown.
    """
    if not gpu.mem_bytes or not total_bytes or tuple(version or ()) < _FIRST_TORCH:
        return {}
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the first that is set is the one that counts
    name = next((name for name in names if name in env), "PYTORCH_ALLOC_CONF")
    given = env.get(name, "")
    if _OPTION in given:
        return {}
    usable = max(gpu.mem_bytes - _CONTEXT_BYTES, gpu.mem_bytes // 2) // processes
    option = f"{_OPTION}:{usable / total_bytes:.4f}"
    return {name: f"{given},{option}" if given else option}


def torch_version(command: Sequence[str], env: Mapping[str, str]) -> list[int]:
    """Return the version of the PyTorch that this command would import, by its environment; empty if unknown.

    It must run in a helper's process, because it looks into directories of the user's.
    """
    program = shutil.which(command[0], path=env.get("PATH", "")) if command else None
    homes = [env.get("VIRTUAL_ENV", ""), env.get("CONDA_PREFIX", "")]
    if program is not None and Path(program).name.startswith("python"):
        homes = [str(Path(program).parents[1])]  # the interpreter decides, whatever environment is active besides
    for home in filter(None, homes):
        for path in sorted(Path(home).glob("lib/python3*/site-packages/torch-*.dist-info")):
            if found := re.match(r"torch-(\d+)\.(\d+)", path.name):
                return [int(found[1]), int(found[2])]
    return []
