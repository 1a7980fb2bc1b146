"""What strace can do here: make system calls fail, wait, or kill who makes them."""

import shutil
import subprocess
import sys
from functools import cache

import pytest

STRACE = shutil.which("strace")


@cache
def may_trace() -> bool:
    """Whether there is a strace that may inject faults into a process of ours."""
    if STRACE is None:
        return False
    command = [STRACE, "-f", "-e", "trace=rename", "-e", "inject=rename:error=EIO", sys.executable, "-S", "-c", "pass"]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, and so count, what needs strace where it cannot be used."""
    if (without := [item for item in items if item.get_closest_marker("strace")]) and not may_trace():
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]
