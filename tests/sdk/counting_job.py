"""A job without torch: each step writes its number to a file; it saves the sum of all numbers so far.

Arguments: how many steps, and the file. With a third argument it asks itself to stop during its last step.
"""

import os
import signal
import sys
from pathlib import Path

import ebbtide


def main() -> None:
    total, journal = int(sys.argv[1]), Path(sys.argv[2])
    job = ebbtide.job()
    state = job.load_checkpoint()
    done = state.step if state else 0
    value = int((state.path / "sum").read_text()) if state else 0

    def save(directory: Path) -> None:
        (directory / "sum").write_text(str(value))

    while done < total:
        if job.should_suspend():
            job.suspend(save, done)
        done += 1
        value += done
        with journal.open("a") as stream:
            stream.write(f"{done}\n")
        job.report(step=done, total=total)
    if len(sys.argv) > 3:
        os.kill(os.getpid(), signal.SIGTERM)
    print(value)


if __name__ == "__main__":
    main()
