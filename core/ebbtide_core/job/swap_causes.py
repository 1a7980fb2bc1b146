"""Says for which requests to stop a job with ``--suspend swap`` leaves its GPU, and for which it ends."""

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import SWAPPED_FOR, StopCause, SuspendMode


def is_swapped_for(job: Job, cause: StopCause) -> bool:
    """Return whether the newest attempt of ``job``, asked to stop for ``cause``, leaves its GPU instead of ending."""
    return job.spec.suspend is SuspendMode.SWAP and cause in SWAPPED_FOR
