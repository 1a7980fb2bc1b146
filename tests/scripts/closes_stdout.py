"""Closes stdin, stdout and stderr, as daemons do; what it has to say it writes into a file."""

import os
import signal
from pathlib import Path

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
folder = os.environ["EBB_RESUME_DIR"]
step = int(Path(folder, "state").read_text()) if folder else 0
print("going on from", step)
print("up", flush=True)
os.closerange(0, 3)
while not asked:
    step += 1
    signal.sigtimedwait([], 0.005)
Path(os.environ["EBB_CHECKPOINT_DIR"], "state").write_text(str(step))
os._exit(85)
