"""Publishes checkpoints, and removes what is older than the newest two; prints each step when it is published."""

import sys
from pathlib import Path

from ebbtide import checkpoints

folder = Path(sys.argv[1])
for attempt, step in ((1, 10), (1, 20), (2, 30), (2, 40)):

    def save(directory: Path, step: int = step) -> None:
        (directory / "state").write_text(str(step) * 1000)
        (directory / "more").write_bytes(bytes(5000))

    checkpoints.publish(folder / f"attempt-{attempt}", step, save, job_id="7", attempt=attempt)
    print(step, flush=True)
    checkpoints.retain(folder)
