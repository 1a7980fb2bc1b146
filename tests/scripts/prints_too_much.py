"""Prints 100 MB without a line end, all byte values, before it trains."""

import signal
import sys

import training

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
block = bytes(range(256)).replace(b"\n", b"") * 4096
written = 0
while written < 100_000_000:
    written += sys.stdout.buffer.write(block)
sys.stdout.flush()
print(f"\nwritten {written}", flush=True)
for step in training.steps(training.resumed()):
    if asked:
        training.save(step)
        sys.exit(85)
