"""A job that can prove how it was treated: it holds a lock while it lives, counts on, and never repeats a number.

Usage: witness.py FOLDER STEPS EXIT_CODE. With 0 steps it counts on until there is a file `enough` in the folder.
"""

import fcntl
import os
import sys
import time
from itertools import count, takewhile
from pathlib import Path


def main() -> None:
    folder, steps, exit_code = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    lock = (folder / "lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (folder / "overlap").write_text(f"{os.getpid()} found another copy")
        sys.exit(111)
    print(f"pid {os.getpid()} attempt {os.environ['EBB_ATTEMPT']}")
    for step in range(steps) if steps else takewhile(lambda _: not (folder / "enough").exists(), count()):
        print(f"step {step}")
        time.sleep(0.02)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
