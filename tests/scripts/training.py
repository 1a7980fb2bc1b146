"""What the scripts here train: a number that grows. It is kept in one file."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

FILE = "state"


def resumed() -> int:
    """The step to go on from, which is printed."""
    folder = os.environ["EBB_RESUME_DIR"]
    step = int(Path(folder, FILE).read_text()) if folder else 0
    print("going on from", step, flush=True)
    return step


def steps(step: int) -> Iterator[int]:
    """Steps without an end; `up` is printed before the first, when whatever the script had to set up is there."""
    print("up", flush=True)
    while True:
        time.sleep(0.005)
        step += 1
        yield step


def save(step: int) -> None:
    """Write the state where Ebbtide wants it, so that at any moment it is there whole or not at all."""
    folder = Path(os.environ["EBB_CHECKPOINT_DIR"])
    (folder / f"{FILE}.part").write_text(str(step))
    (folder / f"{FILE}.part").rename(folder / FILE)
    print("saved", step, flush=True)
