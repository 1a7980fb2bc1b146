"""`ebb` on a terminal or in the background, as a person has it."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator

from tests.e2e.cluster import EBB, REPOSITORY, Cluster

PATIENCE_S = 30.0


class Terminal:
    """A command on a terminal of its own: what it shows, and keys for it."""

    def __init__(self, cluster: Cluster, *arguments: str) -> None:
        self.shown = b""
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [*EBB, *arguments], env=cluster.environment | {"TERM": "xterm"}, cwd=REPOSITORY, stdin=theirs,
            stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def until(self, words: str) -> None:
        """Read until these words were shown since the last time."""
        deadline = time.monotonic() + PATIENCE_S
        while words.encode() not in self.shown:
            assert select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0], (words, self.shown)
            try:
                data = os.read(self._ours, 65536)
            except OSError:
                data = b""
            assert data, (words, self.shown)
            self.shown += data
        self.shown = self.shown.partition(words.encode())[2]

    def end(self) -> int:
        """Its exit code, once it has ended."""
        with contextlib.suppress(OSError):
            while data := os.read(self._ours, 65536):
                self.shown += data
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@contextlib.contextmanager
def on_terminal(cluster: Cluster, *arguments: str) -> Iterator[Terminal]:
    """`ebb` on a terminal for as long as the block lasts."""
    terminal = Terminal(cluster, *arguments)
    try:
        yield terminal
    finally:
        terminal.close()


@contextlib.contextmanager
def in_background(cluster: Cluster, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """`ebb` with pipes, to be interrupted."""
    process = subprocess.Popen(
        [*EBB, *arguments], env=cluster.environment, cwd=REPOSITORY, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
