"""Stands for one command of a job's script, and notes in a journal what becomes of it and when.

    witness.py saves | takes-part | ignorant | short, and tidy for what a trap runs

Each line of the journal: what, which kind, its pid, when it was forked, and when it noted that (s since boot).
"""

import os
import signal
import sys
import time
from pathlib import Path


def note(what: str) -> None:
    line = f"{what} {sys.argv[1]} {os.getpid()} {_forked_at()} {time.clock_gettime(time.CLOCK_BOOTTIME):.6f}\n"
    journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(journal, line.encode())
    os.close(journal)


def _forked_at() -> float:
    """To the hundredth, and never later than it was."""
    with open("/proc/self/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def forever() -> None:
    note("up")
    while True:
        time.sleep(0.05)


def saves() -> None:
    def leave(*_: object) -> None:
        note("asked")
        time.sleep(0.05)
        note("saved")
        os._exit(85)

    signal.signal(signal.SIGTERM, leave)
    forever()


def takes_part() -> None:
    import ebbtide

    def save(folder: Path) -> None:
        (folder / "n").write_text("saved")
        note("saved")

    job, step = ebbtide.job(), 0
    job.should_suspend()
    note("up")
    while True:
        time.sleep(0.002)
        step += 1
        if job.should_suspend():
            note("asked")
            job.suspend(save, step=step)


if __name__ == "__main__":
    note("began")
    match sys.argv[1]:
        case "saves":
            saves()
        case "takes-part":
            takes_part()
        case "ignorant":
            forever()
