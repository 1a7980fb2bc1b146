"""Processes of a test that are killed, stopped, continued and started again, and none of which outlives it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol, Self

import psutil

from tests.e2e.cluster import EBB, processes_of

START_S = 60.0


class NotInTime(Exception):
    """What was waited for did not happen."""


class Daemon:
    """`ebb` with these arguments for ``home``; the process changes, its name and log stay. A context that ends it."""

    def __init__(self, home: Path, name: str, *arguments: str) -> None:
        self.home, self.name = home, name
        self.log = home / f"{name}.log"
        self._command = [*EBB, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """That of the process which was started last."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it; it is not ready yet when this returns."""
        environment = dict(os.environ) | {"EBB_HOME": str(self.home), "EBB_DEBUG": "1"}
        environment.pop("EBB_MASTER", None)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=environment, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def runs(self) -> bool:
        """Whether there is a process that has not ended."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)

    def log_end(self, lines: int = 40) -> str:
        """The last lines of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


class Master(Protocol):
    """What is waited for."""

    @property
    def pid(self) -> int: ...
    def runs(self) -> bool: ...
    def log_end(self) -> str: ...


def published(home: Path, master: Master) -> None:
    """Wait until this very process of the master serves. Raises NotInTime."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if not master.runs():
            raise NotInTime(f"the master ended by itself:\n{master.log_end()}")
        with contextlib.suppress(FileNotFoundError):
            record = json.loads((home / "master.json").read_text())
            if record["pid"] == master.pid:
                return
        time.sleep(0.002)
    raise NotInTime(f"the master does not serve after {START_S:g} s:\n{master.log_end()}")


def end_all_of(home: Path) -> None:
    """Kill whatever belongs to this home, by pid, until nothing is left."""
    deadline = time.monotonic() + 20
    while left := list(processes_of(home)):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(left, timeout=0.5)
        if time.monotonic() > deadline:
            print(f"left running: {[process.pid for process in left]}", file=sys.stderr)
            return
