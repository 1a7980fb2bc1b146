"""Has modules beside it whose names are common ones."""

import sys

sys.path.append(sys.path.pop(0))  # or Python itself would find the types.py beside this file

import ebbtide

import agent
import master

print(agent.NAME, "and", master.NAME)
job = ebbtide.job()
state = job.load_checkpoint()
step = state.step if state else 0
print(f"going on from {step}")
print("up", flush=True)
while True:
    step += 1
    job.report(step=step)
    if job.should_suspend():
        print(f"saved {step}")
        job.suspend(lambda folder, step=step: (folder / "state").write_text(str(step)), step=step)
