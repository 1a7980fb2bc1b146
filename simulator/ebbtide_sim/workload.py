"""Workloads: jobs with arrival times and run times, and the changes that experiments make to all jobs of one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ebbtide_core.estimates.work import Speedup
from ebbtide_core.model import limits
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.spec.resources import check_gpu_range
from ebbtide_core.model.spec_error import SpecError
from ebbtide_core.model.types import WHOLE, JobClass


class WorkloadError(ValueError):
    """Raised for input that cannot be read or made; one line, ``FILE:LINE: field: what is wrong and the limit``."""


@frozen(kw_only=True)
class SimJob:
    """One job of a workload; times in seconds from the workload's start, GPU counts in parts.

    ``runtime_s`` is at one GPU for elastic jobs and at the requested count (``gpus_max``) for rigid ones. So is
    ``requested_s``, the run time that the job's user asked for, None if unknown; it is not enforced. ``bag`` is the bag
    of tasks that the job belongs to ("job" in seed 001's words), "" for none. ``gpu_mem_bytes`` is per GPU, where 0
    means that of its share; ``cpus`` and ``mem_bytes`` are per node. ``grace_s`` is the grace period, and ``save_s``
    how long the job really takes to step aside, None if all of the grace period. A lower ``priority`` is more urgent.
    The job is ended after running for ``time_limit_s``; with ``time_auto`` it reserves by its ``script``'s earlier
    runs. With ``nodes`` above 1 the job runs on exactly so many nodes; with ``max_nodes`` above 1, on at most so many
    if no single node has room. With ``mixed_gpus`` its GPUs may be of several models.
    """

    id: str
    submit_s: float
    runtime_s: float
    job_class: JobClass = JobClass.BEST_EFFORT
    user: str = ""
    bag: str = ""
    gpus_min: int = WHOLE
    gpus_max: int = WHOLE
    gpu_mem_bytes: int = 0
    cpus: float = 0.0
    mem_bytes: int = 0
    grace_s: float = 0.0
    save_s: float | None = None
    priority: int = limits.DEFAULT_PRIORITY
    weight: float = 1.0
    preemptible: bool = True
    requested_s: float | None = None
    script: str = ""
    time_limit_s: float | None = None
    time_auto: bool = False
    nodes: int = 1
    max_nodes: int = 1
    mixed_gpus: bool = False

    @property
    def steps_aside_s(self) -> float:
        """How long the job takes to step aside, in seconds: at most its grace period."""
        return self.grace_s if self.save_s is None else min(self.save_s, self.grace_s)

    @property
    def elastic(self) -> bool:
        """Whether the GPU count may vary."""
        return self.gpus_max > self.gpus_min


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs sorted by submission, ties in the order of their source.

    ``skipped`` counts the jobs of the source that were left out, by reason; ``notes`` are the assumptions, in words.
    The user must see both.
    """

    name: str
    jobs: Sequence[SimJob]
    skipped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for earlier, later in pairwise(self.jobs):
            if later.submit_s < earlier.submit_s:
                raise WorkloadError(f"{self.name}: jobs: {later.id!r} is listed after {earlier.id!r}, but came earlier")


def elastic(workload: Workload, low_parts: int, high_parts: int, speedup: Speedup) -> Workload:
    """Let every job that uses GPUs have from ``low_parts`` to ``high_parts`` of them.

    A rigid job's run time at the count it asked for becomes its work at one GPU: run time x ``speedup`` of that count.
    Raise `WorkloadError` if no job may have these bounds. Jobs without GPUs stay as they are, with a note.
    """
    try:
        check_gpu_range(low_parts, high_parts)
    except SpecError as error:
        raise WorkloadError(f"--elastic: {error}") from None
    if low_parts == 0:
        raise WorkloadError("--elastic: needs more than 0 GPUs at least")
    final = 1.0 if high_parts > low_parts else speedup(high_parts)
    jobs = [_with_bounds(job, low_parts, high_parts, speedup, final) for job in workload.jobs]
    untouched = sum(job.gpus_max == 0 for job in jobs)
    notes = (f"{untouched} jobs without GPUs stay as they are",) if untouched else ()
    return replace(workload, jobs=jobs, notes=workload.notes + notes)


def _with_bounds(job: SimJob, low: int, high: int, speedup: Speedup, final: float) -> SimJob:
    if job.gpus_max == 0:
        return job
    speed = 1.0 if job.elastic else speedup(job.gpus_max)
    requested_s = None if job.requested_s is None else job.requested_s * speed / final
    return replace(job, gpus_min=low, gpus_max=high, runtime_s=job.runtime_s * speed / final, requested_s=requested_s)


def offline(workload: Workload) -> Workload:
    """Return the same jobs in the same order, all submitted at 0."""
    return replace(workload, jobs=[replace(job, submit_s=0.0) for job in workload.jobs])
