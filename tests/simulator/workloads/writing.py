"""Writes a workload as our own CSV."""

import csv
from pathlib import Path

from ebbtide_core.model.types import gpus
from ebbtide_sim.workload import SimJob, Workload
from ebbtide_sim.workloads.plain import OPTIONAL, REQUIRED
from ebbtide_sim.workloads.table import GIB


def write_csv(workload: Workload, path: Path) -> None:
    """Write the jobs; `read_plain` reads the same jobs from the file."""
    with path.open("w", encoding="utf-8", newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(REQUIRED + OPTIONAL)
        writer.writerows(_cells(job) for job in workload.jobs)


def _cells(job: SimJob) -> tuple[object, ...]:
    return (
        job.id, repr(job.submit_s), repr(job.runtime_s), job.job_class.value, job.user, job.bag, gpus(job.gpus_min),
        gpus(job.gpus_max), job.gpu_mem_bytes / GIB, job.cpus, job.mem_bytes / GIB, job.grace_s, job.priority,
        job.weight, str(job.preemptible).lower(), "" if job.requested_s is None else repr(job.requested_s),
    )  # fmt: skip
