"""Run an example as a node would: its environment, its output line by line, its end."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 60.0
SUSPENDED = 85
_SIGNALLED = """
import builtins, os, runpy, sys
beginning, signum, show = sys.argv[1], int(sys.argv[2]), print
def print_and_signal(*words, **options):
    show(*words, **options)
    if str(words[0]).startswith(beginning):
        os.kill(os.getpid(), signum)
builtins.print = print_and_signal
del sys.argv[:3]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def contract(root: Path, attempt: int, resume_dir: Path | None = None) -> dict[str, str]:
    """The environment of an attempt of job 7 whose checkpoints lie below `root`."""
    return {
        "EBB_JOB_ID": "7",
        "EBB_ATTEMPT": str(attempt),
        "EBB_CHECKPOINT_DIR": str(root / "7" / f"attempt-{attempt}"),
        "EBB_RESUME_DIR": str(resume_dir or ""),
    }


@contextmanager
def started(
    script: str, *options: object, signalled: tuple[str, int] | None = None, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """The example as a process of its own on one thread; killed if it is still there at the end.

    ``signalled``: as soon as it prints a line that begins so, it gets that signal, however busy the machine is.
    """
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    itself = [] if signalled is None else ["-c", _SIGNALLED, signalled[0], str(int(signalled[1]))]
    process = subprocess.Popen(
        [sys.executable, *itself, EXAMPLES / script, *map(str, options)],
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end: the exit code and what was still to be read; killed after `DEADLINE_S`."""
    assert process.stdout is not None
    late = threading.Timer(DEADLINE_S, process.kill)
    late.start()
    try:
        text = process.stdout.read()  # communicate leaves out what is buffered behind the last line
        code = process.wait()
    finally:
        late.cancel()
    assert "Warning" not in text, text
    return code, text


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    """The output up to and including the first line that matches."""
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if re.match(pattern, line):
            return read
    raise AssertionError(f"no line matched {pattern!r} in:\n{read}")


def steps(text: str) -> list[int]:
    """The numbers of the steps that the output names."""
    return [int(number) for number in re.findall(r"^step (\d+)/\d+ loss \d+\.\d{4}$", text, re.MULTILINE)]


def resumed_from(text: str) -> tuple[int, int]:
    """The step and the attempt that the output says it went on from."""
    match = re.search(r"^resumed from step (\d+) \(attempt (\d+)\)$", text, re.MULTILINE)
    assert match is not None, text
    return int(match[1]), int(match[2])
