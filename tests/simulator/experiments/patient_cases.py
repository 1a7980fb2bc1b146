"""An experiment of two cases that wait: each leaves its pid in the folder that is given, and ends when `go` is there.

Prints what the cases returned, or that it was interrupted.
"""

import os
import sys
import time
from functools import partial
from pathlib import Path

from ebbtide_sim.experiments.running import Run, run_all


def wait(folder: Path) -> str:
    (folder / f"{os.getpid()}.pid").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return "done"


def main(folder: Path) -> None:
    try:
        print(run_all([Run(name, partial(wait, folder)) for name in "ab"], 2, lambda label, part: None))
    except KeyboardInterrupt:
        print("interrupted")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
