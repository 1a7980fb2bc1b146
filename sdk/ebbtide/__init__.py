"""Lets a training script be suspended, resumed and resized by Ebbtide.

import ebbtide

job = ebbtide.job()
state = job.load_checkpoint()
for step in range(state.step if state else 0, total):
    ...
    job.report(step=step + 1, total=total, loss=loss)
    if job.should_suspend():
        job.suspend(save=lambda directory: torch.save(..., directory / "state.pt"))

`step` is always the number of steps that are done. Outside Ebbtide the same script runs, and these calls do nothing,
except that checkpoints work if EBB_CHECKPOINT_DIR is set.
"""

from ebbtide.checkpoints import Checkpoint, InvalidCheckpoint
from ebbtide.distributed import CheckpointFailed
from ebbtide.fakes import OutOfMemory, fake_allocate
from ebbtide.jobs import Job, State, job
from ebbtide.version import VERSION

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

__version__ = VERSION
