"""GPUs to test with: a fake node's state directory, and processes that hold memory on it."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from ebbtide_agent.gpu import fake
from ebbtide_agent.gpu.nvml import NvmlBackend
from ebbtide_agent.gpu.profiles import parse_profile
from ebbtide_agent.processes import procfs


class FakeNode:
    """A state directory and what a supervisor, a user or a fault would write into it."""

    def __init__(self, state_dir: Path, profile: str) -> None:
        self.state_dir = state_dir
        fake.set_up(state_dir, parse_profile(profile), keep=False)
        self.library = fake.FakeNvml(state_dir)
        self.backend = NvmlBackend(self.library, kind="fake", numa_node=self.library.numa_node)
        self.uuids = [gpu.uuid for gpu in self.backend.gpus()]
        self._processes: list[subprocess.Popen[bytes]] = []

    def register(self, pid: int, gpus: dict[str, int]) -> None:
        """What a supervisor does for a process it starts."""
        content = {"pid": pid, "starttime": procfs.read_stat(pid).starttime, "gpus": gpus}
        self.write(f"processes/{pid}.json", content)

    def start(self, gpus: dict[str, int], code: str = "input()") -> subprocess.Popen[bytes]:
        """A real process that holds so many bytes of each GPU until it is ended."""
        process = subprocess.Popen([sys.executable, "-Sc", code], stdin=subprocess.PIPE)
        self._processes.append(process)
        self.register(process.pid, gpus)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        process.stdin.close()

    def faults(self, **faults: object) -> None:
        self.write("faults.json", faults)

    def write(self, name: str, content: object) -> None:
        draft = self.state_dir / f".draft-{os.getpid()}"
        draft.write_text(json.dumps(content))
        draft.replace(self.state_dir / name)

    def close(self) -> None:
        for process in self._processes:
            self.end(process)


@pytest.fixture
def fake_node(tmp_path):
    nodes: list[FakeNode] = []

    def make(profile: str) -> FakeNode:
        nodes.append(FakeNode(tmp_path / "gpus", profile))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()
