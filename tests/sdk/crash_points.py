"""Publish and retain again and again, killed one file operation later each time; print what was left valid each time.

Run as a program: a process of its own has no threads, so that forking it is safe.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from ebbtide import checkpoints


def save(step: int, job_dir: Path) -> None:
    def write(directory: Path) -> None:
        (directory / "part").mkdir()
        (directory / "part" / "weights").write_bytes(bytes([step]) * 1000)
        (directory / "state").write_text(f"step {step}")

    attempt = 1 + step // 10
    checkpoints.publish(job_dir / f"attempt-{attempt}", step, write, job_id="7", attempt=attempt)


def owner(function: Any) -> str | None:
    """The module of a built-in function, or of the object whose method it is."""
    return function.__module__ or type(function.__self__).__module__


def kill_at_call(number: int) -> None:
    """SIGKILL this process before its `number`th file operation from now on."""
    seen = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal seen
        if event != "c_call" or owner(argument) not in ("posix", "_io"):
            return
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def survives(number: int, job_dir: Path) -> bool:
    """Publish step 20 over steps 9 and 10 in a child that dies at call `number`; whether it got through."""
    child = os.fork()
    if child == 0:
        kill_at_call(number)
        save(20, job_dir)
        checkpoints.retain(job_dir, keep=1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main() -> None:
    os.fsync = lambda descriptor: None  # a killed process loses no page cache, and thousands of syncs take seconds
    number, finished = 0, False
    while not finished:
        number += 1
        with tempfile.TemporaryDirectory() as directory:
            job_dir = Path(directory)
            save(9, job_dir)
            save(10, job_dir)
            finished = survives(number, job_dir)
            newest = checkpoints.newest_valid(job_dir)
            listed = [path for _, _, names in os.walk(job_dir) for path in names]
            print(newest.step if newest else None, len(listed))


if __name__ == "__main__":
    main()
