"""Has modules beside it whose names are common ones, and imports the SDK as well."""

import agent
import ebbtide
import master

job = ebbtide.job()
print(agent.NAME, "and", master.NAME)
state = job.load_checkpoint()
step = state.step if state else 0
print("going on from", step)
print("up", flush=True)
while True:
    step += 1
    job.report(step=step)
    if job.should_suspend():
        job.suspend(lambda folder: (folder / "state").write_text(str(step)), step=step)
