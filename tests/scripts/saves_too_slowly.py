"""Takes longer to save than any grace period, unless `quick`; it overwrites its state in place, as many scripts do."""

import os
import signal
import sys
import time
from pathlib import Path

import training

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
for step in training.steps(training.resumed()):
    if asked and "quick" in sys.argv:
        training.save(step)
        sys.exit(85)
    if asked:
        with Path(os.environ["EBB_CHECKPOINT_DIR"], training.FILE).open("w") as file:
            file.write(str(step)[:1])
            file.flush()
            print("saving", flush=True)
            time.sleep(3600)
