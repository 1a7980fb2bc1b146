"""Goes to another directory, which it removes; its checkpoints are published through the SDK."""

import os
import tempfile

import ebbtide
import training

with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
job = ebbtide.job()
state = job.load_checkpoint()
print(f"going on from {state.step if state else 0}")
for step in training.steps(state.step if state else 0):
    job.report(step=step)
    if job.should_suspend():
        print(f"saved {step}")
        job.suspend(lambda folder, step=step: (folder / "state").write_text(str(step)), step=step)
