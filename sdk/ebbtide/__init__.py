"""What a training script imports to be suspended, resumed and resized.

import ebbtide

job = ebbtide.job()
state = job.load_checkpoint()
for step in range(state.step if state else 0, total):
    ...
    job.report(step=step + 1, total=total, loss=loss)
    if job.should_suspend():
        job.suspend(save=lambda directory: torch.save(..., directory / "state.pt"))

A *step* is always the number of steps that are done. Outside Ebbtide the same script runs and nothing of this acts.
"""

from ebbtide.checkpoints import Checkpoint, InvalidCheckpoint
from ebbtide.distributed import CheckpointFailed
from ebbtide.fakes import OutOfMemory, fake_allocate
from ebbtide.jobs import Job, State, job

__all__ = [
    "Checkpoint",
    "CheckpointFailed",
    "InvalidCheckpoint",
    "Job",
    "OutOfMemory",
    "State",
    "fake_allocate",
    "job",
]
