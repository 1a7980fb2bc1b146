"""Start and stop the processes of a local cluster."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Final

from ebbtide_machine.process import Identity

from ebbtide_cli import interrupts
from ebbtide_cli.errors import FAILED, USAGE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.terminal.output import StatusLine, complain
from ebbtide_cli.terminal.text import printable

READY_S: Final = 60.0
"""Seconds that a daemon may take to become ready; replaying a long journal takes seconds."""
STOP_S: Final = 10.0
"""Seconds that a daemon may take to end after SIGTERM; neither master nor agent has anything to wait for then."""
KILLED_S: Final = 5.0
POLL_S: Final = 0.02
SILENT_S: Final = 2.0
"""Seconds that a wait lasts before it is shown."""
TAIL_LINES: Final = 10
TAIL_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class BackgroundProcess:
    """A process that this one has just started; its log begins at byte ``log_start`` of ``log``."""

    name: str
    child: subprocess.Popen[bytes]
    log: Path
    log_start: int


OF_OTHERS: Final = ("EBB_MASTER", "EBB_TOKEN")
"""Variables that may be about another cluster than the one of the home."""

_started: list[BackgroundProcess] = []


def start_daemon(name: str, arguments: Sequence[str], home: Home, log: Path) -> BackgroundProcess:
    """Start ``ebb`` with ``arguments`` in a session of its own, logging to ``log``."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if key not in OF_OTHERS}
    environment |= {"EBB_HOME": str(home.root), "EBB_DEBUG": "1"}
    with log.open("ab") as output, interrupts.shielded():
        start = output.tell()
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "ebbtide_cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=home.root,
            start_new_session=True,
        )
        daemon = BackgroundProcess(name, child, log, start)
        _started.append(daemon)
    return daemon


def end_started() -> None:
    """End every daemon that this process has started, the last one first."""
    for daemon in reversed(_started):
        daemon.child.terminate()
        try:
            daemon.child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            daemon.child.kill()
            daemon.child.wait()
    _started.clear()


def wait_until_ready(
    what: str, ready: Callable[[], bool], daemon: BackgroundProcess | None, log: Path, line: StatusLine
) -> None:
    """Wait until ``ready``; fail with the end of the log if the daemon dies meanwhile, or if it takes too long."""
    began = time.monotonic()
    while not ready():
        waited = time.monotonic() - began
        if daemon is not None and daemon.child.poll() is not None:
            raise _died(daemon, line)
        if waited > READY_S:
            raise Failure(f"{what} is not ready after {READY_S:g} s: see {log}")
        if waited > SILENT_S:
            line.show(f"waiting for {what} ({waited:.0f} s)")
        time.sleep(POLL_S)
    line.clear()


def stop_process(what: str, process: Identity) -> None:
    """End a daemon with SIGTERM; if it takes too long, say so and send SIGKILL."""
    if not process.signal(SIGTERM) and process.is_alive():
        raise Failure(f"{what} (pid {process.pid}) is another account's, which alone may stop it")
    if process.ended_within(STOP_S):
        return
    complain(f"{what} (pid {process.pid}) did not end within {STOP_S:g} s of SIGTERM: sending SIGKILL")
    process.signal(SIGKILL)
    if not process.ended_within(KILLED_S):
        raise Failure(f"{what} (pid {process.pid}) survives SIGKILL: is it stuck in a system call?")


def first_to_end(processes: Iterable[Identity], stop: int) -> Identity | None:
    """Wait until one of several processes has ended, and return it; return None once ``stop`` can be read."""
    poll, opened = select.poll(), {}
    poll.register(stop, select.POLLIN)
    with ExitStack() as stack:
        for process in processes:
            descriptor = stack.enter_context(process.opened())
            if descriptor is None:
                return process
            poll.register(descriptor, select.POLLIN)
            opened[descriptor] = process
        return opened.get(poll.poll()[0][0])


def print_log_end(log: Path, start: int = 0) -> None:
    """Print the last lines of a log on stderr, from what was written after byte ``start``; none if it is missing."""
    lines = list[str]()
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    for text in lines[-TAIL_LINES:]:
        print(f"  {printable(text)}", file=sys.stderr)


def _died(daemon: BackgroundProcess, line: StatusLine) -> Failure:
    line.clear()
    print_log_end(daemon.log, daemon.log_start)
    # A daemon that refuses its options exits with ebb's own code for wrong usage.
    code = USAGE if daemon.child.returncode == USAGE else FAILED
    return Failure(f"the {daemon.name} ended with exit code {daemon.child.returncode}: see {daemon.log}", code)
