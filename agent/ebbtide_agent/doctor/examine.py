"""Runs all checks in processes that can be lost, and never waits longer than a check may take."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import Any

from ebbtide_agent.doctor.finding import Finding, problem
from ebbtide_agent.doctor.probes import GROUPS, Probe
from ebbtide_agent.doctor.subject import Subject

_START_S = 10.0  # in which a process must begin
_END_S = 1.0  # in which it must be gone once it was killed; one that hangs in the kernel is left there


def examine(
    subject: Subject, begins: Callable[[str], None], groups: dict[str, tuple[Probe, ...]] = GROUPS
) -> list[Finding]:
    """Return every finding, in the order of the groups; ``begins`` is called with each check, from other threads."""
    with ThreadPoolExecutor(len(groups)) as pool:
        running = {pool.submit(_group, subject, probes, begins): name for name, probes in groups.items()}
        done = {running[future]: future.result() for future in as_completed(running)}
    return [finding for name in groups for finding in done[name]]


def _group(subject: Subject, probes: Sequence[Probe], begins: Callable[[str], None]) -> list[Finding]:
    """Run one check after the other; after one that hung or crashed, go on with the next in a new process."""
    found, rest = list[Finding](), list(probes)
    while rest:
        child = _ProbeProcess(subject, rest)
        try:
            for message in child.messages():
                if name := message.get("begins"):
                    begins(name)
                    child.began(name)
                else:
                    found.append(Finding.from_json(message["found"]))
        except _Lost as lost:
            found.append(lost.finding)
        finally:
            child.end()
        rest = child.left
    return found


class _Lost(Exception):
    """The process hung or died during a check."""

    def __init__(self, check: str, what: str) -> None:
        super().__init__(what)
        advice = "sudo dmesg | tail: a driver or a disk that hangs is named there"
        self.finding = problem(check, what, advice)


class _ProbeProcess:
    """A process that runs some checks; `left` are those that it has not begun."""

    def __init__(self, subject: Subject, probes: Sequence[Probe]) -> None:
        self.left = list(probes)
        self._current: Probe | None = None
        self._deadline = time.monotonic() + _START_S
        # One that is killed removes no files of its own.
        self._scratch = tempfile.TemporaryDirectory(prefix="ebb-doctor-", ignore_cleanup_errors=True)
        # With -P no file of the current directory is taken for a module.
        command = [sys.executable, "-P", "-m", "ebbtide_agent.doctor", *(probe.name for probe in probes)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": self._scratch.name},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps(subject.to_json()).encode())

    def began(self, name: str) -> None:
        """Note that the process has begun this check, and set the check's deadline."""
        probe = next(probe for probe in self.left if probe.name == name)
        self.left = self.left[self.left.index(probe) + 1 :]
        self._current, self._deadline = probe, time.monotonic() + probe.limit_s

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield what the process tells, until it ends well. Raises _Lost."""
        assert self._process.stdout is not None
        descriptor, text = self._process.stdout.fileno(), b""
        while True:
            if not select.select([descriptor], [], [], max(0.0, self._deadline - time.monotonic()))[0]:
                raise self._lost("did not answer in time")
            data = os.read(descriptor, 65536)
            if not data:
                break
            *lines, text = (text + data).split(b"\n")
            yield from map(json.loads, lines)
        if code := self._process.wait():
            raise self._lost(f"crashed ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})")

    def end(self) -> None:
        """Kill the process if it still runs, close its pipe, and remove its files."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._scratch.cleanup()

    def _lost(self, what: str) -> _Lost:
        if self._current is None:  # it never came to its first check, so another try makes no sense
            name, self.left = self.left[0].name, []
            return _Lost(name, f"{what}: the checks could not begin")
        return _Lost(self._current.name, f"{what}, after {self._current.limit_s:g} s" if "time" in what else what)
