"""What the scripts here train: a number that grows. It is kept in one file."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

FILE = "state"


def say(line: str) -> None:
    """Print the line at once and in one piece, also from a handler that interrupts the same: streams refuse that."""
    os.write(1, f"{line}\n".encode())


def resumed() -> int:
    """The step to go on from, which is printed."""
    folder = os.environ["EBB_RESUME_DIR"]
    step = int(Path(folder, FILE).read_text()) if folder else 0
    say(f"going on from {step}")
    return step


def steps(step: int) -> Iterator[int]:
    """Steps without an end; `up` is printed before the first, when whatever the script had to set up is there."""
    say("up")
    while True:
        time.sleep(0.005)
        step += 1
        yield step


def save(step: int) -> None:
    """Write the state where Ebbtide wants it, so that at any moment it is there whole or not at all."""
    folder = Path(os.environ["EBB_CHECKPOINT_DIR"])
    (folder / f"{FILE}.part").write_text(str(step))
    (folder / f"{FILE}.part").rename(folder / FILE)
    say(f"saved {step}")
