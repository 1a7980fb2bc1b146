"""Sets the driver's own limit of GPU memory for a control group, which no process in the group can exceed.

NVML has the limit from r615 on, for root, on whole GPUs, with control groups v2. The limit ends with its group. It is
set in a process of its own, because a driver call may never return.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ebbtide_agent.gpu.handles import handle_of

_TIMEOUT_S = 10.0
_NOT_SET = 3


class NotLimited(Exception):
    """The driver sets no limit; the message says why in one line."""


def set_limit(library: Any, uuid: str, group: Path, mem_bytes: int) -> None:
    """Limit the group to `mem_bytes` of the GPU's memory; `library` is `pynvml` or has its calls. Raises NotLimited."""
    if not hasattr(library, "nvmlDeviceSetMemoryLimits_v1"):
        raise NotLimited("this NVML binding has no nvmlDeviceSetMemoryLimits_v1")
    try:
        library.nvmlInit()
        handle = handle_of(library, uuid)
        limits = library.c_nvmlSetMemoryLimits_v1_t()
        limits.nameSpace = os.fsencode(group)
        limits.softLimit = limits.hardLimit = mem_bytes
        library.nvmlDeviceSetMemoryLimits_v1(handle, limits)
        found = library.c_nvmlGetMemoryLimits_v1_t()
        found.nameSpace = os.fsencode(group)
        library.nvmlDeviceGetMemoryLimits_v1(handle, found)
    except library.NVMLError as error:
        raise NotLimited(f"NVML: {error}") from None
    if found.hardLimit != mem_bytes:
        raise NotLimited(f"the driver took {mem_bytes} bytes and says {found.hardLimit}")


def have_limit_set(uuid: str, group: Path, mem_bytes: int) -> None:
    """Set the limit as `set_limit` does, in a process of its own. Blocks. Raises NotLimited."""
    command = [sys.executable, "-m", "ebbtide_agent.mps.memory_limit", uuid, str(group), str(mem_bytes)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotLimited(str(error)) from None
    if done.returncode:
        words = done.stdout.strip() if done.returncode == _NOT_SET else f"its process ended with {done.returncode}"
        raise NotLimited(words)


def main(uuid: str, group: str, mem_bytes: str) -> int:
    """Set the limit, or print why it is not set; return the exit code."""
    try:
        set_limit(importlib.import_module("pynvml"), uuid, Path(group), int(mem_bytes))
    except (ImportError, NotLimited) as error:
        print(error)  # noqa: T201
        return _NOT_SET
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
