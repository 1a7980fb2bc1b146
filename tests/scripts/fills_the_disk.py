"""Runs out of disk while it saves, from its second attempt on. With `sdk` it publishes through the SDK."""

import os
import signal
import sys
from pathlib import Path

import ebbtide
import training

ON_SDK = "sdk" in sys.argv
job = ebbtide.job()
asked = []
if not ON_SDK:
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))


def save(folder: Path) -> None:
    with (folder / training.FILE).open("w") as file:
        file.write(str(step))
    if job.attempt > 1:
        (folder / training.FILE).write_text(str(step)[:1])
        with open("/dev/full", "w") as full:
            full.write("the rest of it")


for step in training.steps(training.resumed()):
    if ON_SDK and job.should_suspend():
        job.suspend(save, step=step)
    if asked:
        save(Path(os.environ["EBB_CHECKPOINT_DIR"]))
        sys.exit(85)
