"""One rank of a job that trains nothing: it counts, and rank 0 prints, reports and saves. It needs no torch."""

import os
import sys
import time
from pathlib import Path

import ebbtide


def save(folder: Path) -> None:
    (folder / "state").write_text("x")


def main() -> None:
    job, leads = ebbtide.job(), os.environ["RANK"] == "0"
    state = job.load_checkpoint()
    first = state.step if state else 0
    if leads:
        print(f"world size {os.environ['WORLD_SIZE']}")
    if leads and state:
        print(f"resumed from step {first}")
    for step in range(first + 1, 10**6):
        time.sleep(0.01)
        if leads:
            print(f"step {step}")
            job.report(step=step)
        if job.should_suspend():
            if leads:
                job.suspend(save, step)
            sys.exit(85)
        if leads and step % 20 == 0:
            job.checkpoint(save, step)


if __name__ == "__main__":
    main()
