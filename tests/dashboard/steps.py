"""A job that reports steps and prints them: how many steps, and how long each takes in seconds."""

import os
import sys
import time
from pathlib import Path

import ebbtide


def save(directory: Path) -> None:
    (directory / "step").write_text("saved")


def main() -> None:
    total, pace = int(sys.argv[1]), float(sys.argv[2])
    job = ebbtide.job()
    state = job.load_checkpoint()
    step = state.step if state else 0
    print(os.environ.get("TEXT", "begins"), flush=True)
    while step < total:
        if job.should_suspend():
            job.suspend(save, step)
        time.sleep(pace)
        step += 1
        job.report(step=step, total=total, loss=1 / step)
        print(f"step {step}", flush=True)


main()
