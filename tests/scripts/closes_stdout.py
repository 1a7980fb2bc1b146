"""Closes stdin, stdout and stderr, as daemons do, and says its last words over a copy."""

import os
import signal
from pathlib import Path

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
folder = os.environ["EBB_RESUME_DIR"]
step = int(Path(folder, "state").read_text()) if folder else 0
print(f"going on from {step}")
print("up", flush=True)
copy = os.dup(1)
os.closerange(0, 3)
while not asked:
    step += 1
    signal.sigtimedwait([], 0.005)
Path(os.environ["EBB_CHECKPOINT_DIR"], "state").write_text(str(step))
os.write(copy, f"saved {step}\n".encode())
os._exit(85)
