"""A state directory of fake GPUs that a test writes, and real processes that are registered in it."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ebbtide_agent.processes import procfs

GIB = 1 << 30


class State:
    """What administrators, supervisors, users and faults write into the directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "processes").mkdir(parents=True)
        self._processes: list[subprocess.Popen[bytes]] = []

    def describe(self, *gpus: dict[str, Any], **node: Any) -> None:
        """Make these the node's GPUs."""
        usual = {"model": "T4", "mem_bytes": 16 * GIB, "idle_bytes": 0}
        self.write("gpus.json", {"gpus": [{**usual, **gpu} for gpu in gpus], **node})

    def faults(self, **faults: Any) -> None:
        self.write("faults.json", faults)

    def start(self, gpus: dict[str, int | None], mps: bool = False, program: str = "") -> subprocess.Popen[bytes]:
        """A real process that holds so many bytes of each GPU until it is ended; `program`: the name it runs under."""
        executable = self._named(program) if program else sys.executable
        process = subprocess.Popen([executable, "-Sc", "input()"], stdin=subprocess.PIPE)
        self._processes.append(process)
        _wait_for_its_name(process)
        self.register(process.pid, gpus, mps)
        return process

    def _named(self, program: str) -> str:
        path = self.directory / program
        path.symlink_to(sys.executable)
        return str(path)

    def register(self, pid: int, gpus: dict[str, int | None], mps: bool = False) -> None:
        """What a supervisor does for a process that it starts."""
        entry = {"pid": pid, "starttime": procfs.read_stat(pid).starttime, "gpus": gpus, "mps": mps}
        self.write(f"processes/{pid}.json", entry)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        process.stdin.close()

    def write(self, name: str, content: Any) -> None:
        draft = self.directory / f".draft-{os.getpid()}"
        draft.write_text(json.dumps(content))
        draft.replace(self.directory / name)

    def close(self) -> None:
        for process in self._processes:
            self.end(process)


def _wait_for_its_name(process: subprocess.Popen[bytes]) -> None:
    """Popen returns in the middle of the exec: descriptors are closed before the new command line is there."""
    while process.poll() is None and not Path(f"/proc/{process.pid}/cmdline").read_bytes():
        time.sleep(0.001)
