"""Says for which requests to stop a job with ``--suspend swap`` leaves its GPU, and for which it ends."""

from typing import Final

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import StopCause, SuspendMode

SWAPPED_FOR: Final = frozenset(
    {
        StopCause.PREEMPTED,
        StopCause.SUSPENDED,
        StopCause.RESERVATION,
        StopCause.DRILLED,
        StopCause.OVERRAN,
        StopCause.INTERFERENCE,
        StopCause.IDLE,
        StopCause.REQUEUED,
    }
)
"""The causes for which a swappable attempt is swapped out; for any other cause it is ended."""


def is_swapped_for(job: Job, cause: StopCause) -> bool:
    """Return whether the newest attempt of ``job``, asked to stop for ``cause``, leaves its GPU instead of ending."""
    return job.spec.suspend is SuspendMode.SWAP and cause in SWAPPED_FOR
