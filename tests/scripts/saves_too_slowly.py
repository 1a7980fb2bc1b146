"""Its first save is quick, all others take longer than any grace period. It overwrites its state in place."""

import os
import signal
import sys
import time
from pathlib import Path

import training

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
for step in training.steps(training.resumed()):
    if asked and os.environ["EBB_ATTEMPT"] == "1":
        training.save(step)
        sys.exit(85)
    if asked:
        with Path(os.environ["EBB_CHECKPOINT_DIR"], training.FILE).open("w") as file:
            file.write(str(step)[:1])
            file.flush()
            print("saving", flush=True)
            time.sleep(3600)
