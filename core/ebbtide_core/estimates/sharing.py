"""How far jobs share GPUs: as far as a GPU does more work for it, by what was measured or is assumed of their speed.

Two jobs that halve a GPU may do 1.5 times as much as one. Where four do no more than two, they only take turns: each
takes twice as long, and the first is done no sooner than the last two would be. So a job works best on the largest
share at which the GPU does most work.
"""

from typing import Final

from ebbtide_core.estimates.work import Curve
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE

ALIKE: Final = 1.0 - 1e-6
"""The factor within which two speeds are the same."""


def working_size(job: Job, speed: Curve) -> int:
    """Return the least size at which ``job`` works well, in parts of GPUs.

    It is the job's smallest one, unless that is a share of a GPU, and a GPU is known to do more, or less, when it is
    shared.
    """
    least = job.gpus_min
    if not 0 < least < WHOLE or not job.elastic:
        return least
    shares = [size for size in job.sizes() if size <= WHOLE]
    work = [speed(size) / size for size in (*shares, WHOLE)]
    most = max(work) * ALIKE
    if min(work) >= most:
        return least
    return max([size for size, done in zip(shares, work, strict=False) if done >= most], default=shares[-1])
