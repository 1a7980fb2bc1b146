"""Publishes a checkpoint now and then, and does not care for signals."""

import signal

import ebbtide
import training

job = ebbtide.job()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
state = job.load_checkpoint()
first = state.step if state else 0
print(f"going on from {first}")
for step in training.steps(first):
    if step % 10 == 0:
        job.checkpoint(lambda folder, step=step: (folder / "state").write_text(str(step)), step=step)
        print(f"saved {step}", flush=True)
