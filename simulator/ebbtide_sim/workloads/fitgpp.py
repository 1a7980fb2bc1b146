"""Generates FitGpp's synthetic jobs from truncated normals per class (seed 000, section 3 and appendix A)."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from ebbtide_core.model.types import WHOLE, JobClass

from ebbtide_sim.workload import SimJob, Workload, WorkloadError
from ebbtide_sim.workloads.draws import Floats, truncated_normal
from ebbtide_sim.workloads.table import GIB

MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Normal:
    """A normal distribution truncated at ``low`` and ``high``."""

    mean: float
    std: float
    low: float
    high: float

    def draw(self, rng: np.random.Generator, size: int) -> Floats:
        """Draw ``size`` values."""
        return truncated_normal(rng, self.mean, self.std, self.low, self.high, size)


@dataclass(frozen=True, slots=True)
class FitGppDemand:
    """The distributions that the jobs are drawn from.

    From the paper: the share of TE jobs, the means of the run times (TE 5 min, BE 30 min) and of the grace period
    (3 min), and their upper bounds (30 min, 24 h, 20 min). **All the rest is assumed**, because the paper shows it in a
    figure only: each standard deviation of a time equals its mean, no run is shorter than a second, and most jobs want
    one or two GPUs of a node with 32 CPUs, 256 GiB and 8 GPUs, TE jobs fewer than BE jobs. CPUs and GPUs are rounded to
    whole numbers, so 17 % of the TE jobs and 8 % of the BE jobs use no GPU.
    """

    te_share: float = 0.3
    te_run_s: Normal = Normal(5 * MINUTE_S, 5 * MINUTE_S, 1.0, 30 * MINUTE_S)
    be_run_s: Normal = Normal(30 * MINUTE_S, 30 * MINUTE_S, 1.0, 24 * HOUR_S)
    grace_s: Normal = Normal(3 * MINUTE_S, 3 * MINUTE_S, 0.0, 20 * MINUTE_S)
    te_cpus: Normal = Normal(4, 4, 1, 32)
    be_cpus: Normal = Normal(6, 6, 1, 32)
    te_mem_gib: Normal = Normal(16, 16, 1, 256)
    be_mem_gib: Normal = Normal(32, 32, 1, 256)
    te_gpus: Normal = Normal(1, 0.75, 0, 8)
    be_gpus: Normal = Normal(2, 2, 0, 8)


NOTES: Final = (
    "the paper gives means and upper bounds of the times; all standard deviations, and the demands of CPU, memory and "
    "GPUs, are assumed",
    "all jobs are there at 0: arrivals are for a closed loop that holds the load",
)


def fitgpp_jobs(n: int, seed: int, demand: FitGppDemand | None = None) -> list[SimJob]:
    """Draw ``n`` jobs in their order of arrival; ``submit_s`` is 0 until a closed loop sets it.

    The same arguments give the same jobs.
    """
    demand = demand or FitGppDemand()
    if n < 0 or not 0 <= demand.te_share <= 1:
        raise WorkloadError(f"fitgpp: {n} jobs with a share of {demand.te_share:g} of TE jobs cannot be drawn")
    rng = np.random.default_rng(seed)
    te = rng.random(n) < demand.te_share
    run_s = _mixed(rng, te, demand.te_run_s, demand.be_run_s)
    cpus = np.rint(_mixed(rng, te, demand.te_cpus, demand.be_cpus))
    mem = np.rint(_mixed(rng, te, demand.te_mem_gib, demand.be_mem_gib) * GIB).astype(np.int64)
    share = np.rint(_mixed(rng, te, demand.te_gpus, demand.be_gpus)).astype(np.int64) * WHOLE
    grace_s = demand.grace_s.draw(rng, n)
    columns = (te.tolist(), run_s.tolist(), cpus.tolist(), mem.tolist(), share.tolist(), grace_s.tolist())
    return [_job(index, *values) for index, values in enumerate(zip(*columns, strict=True))]


def fitgpp(n: int, seed: int, demand: FitGppDemand | None = None) -> Workload:
    """Return the jobs of `fitgpp_jobs` as a workload."""
    return Workload("fitgpp", fitgpp_jobs(n, seed, demand), notes=NOTES)


def _mixed(rng: np.random.Generator, te: np.ndarray, of_te: Normal, of_be: Normal) -> Floats:
    """Draw a value for each job from the distribution of its class."""
    values = np.empty(te.size)
    count = int(te.sum())
    values[te] = of_te.draw(rng, count)
    values[~te] = of_be.draw(rng, te.size - count)
    return values


def _job(index: int, te: bool, run_s: float, cpus: float, mem: int, share: int, grace_s: float) -> SimJob:
    return SimJob(
        id=str(index),
        submit_s=0.0,
        runtime_s=run_s,
        job_class=JobClass.TRIAL_AND_ERROR if te else JobClass.BEST_EFFORT,
        gpus_min=share,
        gpus_max=share,
        cpus=cpus,
        mem_bytes=mem,
        grace_s=grace_s,
    )
