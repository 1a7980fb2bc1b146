"""A stand-in for NVIDIA's program on the PATH, in a directory short enough for sockets, and nothing left of it."""

import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from ebbtide_agent.mps.control import BINARY

STAND_IN = Path(__file__).with_name("stand_in.py")


@pytest.fixture
def place():
    path = Path(tempfile.mkdtemp(prefix="ebb-"))
    yield path
    deadline = time.monotonic() + 30.0
    while left := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _belongs(pid, path)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)
    assert left == []


def _belongs(pid: int, path: Path) -> bool:
    try:
        return f"CUDA_MPS_PIPE_DIRECTORY={path}/".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@pytest.fixture
def binary(place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program, which is found on the PATH, too."""
    path = place / "bin" / BINARY
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(STAND_IN))} "$@"\n')
    path.chmod(0o700)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    return str(path)
