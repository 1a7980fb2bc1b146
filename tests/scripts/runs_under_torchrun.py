"""One of several workers of torchrun; rank 0 saves, and takes longer than the second that the others take to end.

With `sdk` it publishes and acknowledges through the SDK; else it saves by itself, and all workers exit with 0.
With `never` they do not end at all.
"""

import os
import signal
import sys

import ebbtide
import training

ON_SDK = "sdk" in sys.argv
rank = int(os.environ["RANK"])
asked = []
job = ebbtide.job()
if not ON_SDK:
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
for step in training.steps(training.resumed()):
    if "never" in sys.argv:
        continue
    if job.should_suspend() if ON_SDK else asked:
        if rank != 0:
            sys.exit(0)
        signal.sigtimedwait([], 1.0)
        if ON_SDK:
            print(f"saved {step}")
            job.suspend(lambda folder, step=step: (folder / "state").write_text(str(step)), step=step)
        training.save(step)
        sys.exit(0)
