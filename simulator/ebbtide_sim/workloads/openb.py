"""Reads the pods of Alibaba's GPU-sharing trace of 2023 (openb)."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ebbtide_core.model import limits
from ebbtide_core.model.types import WHOLE, JobClass

from ebbtide_sim.workload import SimJob, Workload
from ebbtide_sim.workloads.arranging import workload_of
from ebbtide_sim.workloads.table import Row, read_rows

COLUMNS: Final = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase", "creation_time",
    "deletion_time", "scheduled_time",
)  # fmt: skip
CLASSES: Final = {
    "LS": JobClass.TRIAL_AND_ERROR,
    "Guaranteed": JobClass.TRIAL_AND_ERROR,
    "BE": JobClass.BEST_EFFORT,
    "Burstable": JobClass.BEST_EFFORT,
}
"""Job classes by quality of service. A user waits for latency-sensitive pods and, by assumption, guaranteed ones."""
NEVER_SCHEDULED: Final = "never scheduled"
MIB: Final = 2**20
_MILLI: Final = 1000
_SMALLEST: Final = 16
"""1/16 of a GPU is the smallest share that a job may have."""


def read_openb(path: Path) -> Workload:
    """Read an openb pod list. A pod arrives at its creation, and runs from its scheduling to its deletion.

    A share of a GPU (``gpu_milli``) is rounded up to the next 1/n, n at most 16. Quality of service becomes the class
    by `CLASSES`. Pods that were never scheduled have no run time and are counted in ``skipped``. The GPU models that a
    pod requires (``gpu_spec``) are ignored.
    """
    found: Counter[str] = Counter()
    jobs = list(_jobs(path, found))
    notes = [
        "shares of a GPU are rounded up to 1/n",
        "LS and Guaranteed pods are te, BE and Burstable ones be",
        "pods that still ran when the trace ended end there",
    ]
    if found["spec"]:
        notes.append(f"{found['spec']} pods insist on a GPU model, which is not used")
    return workload_of(path.name, jobs, {NEVER_SCHEDULED: found[NEVER_SCHEDULED]}, tuple(notes))


def _jobs(path: Path, found: Counter[str]) -> Iterator[SimJob]:
    seen: dict[str, int] = {}
    for row in read_rows(path, COLUMNS):
        job = _job(row, row.unseen("name", seen))
        if job is None:
            found[NEVER_SCHEDULED] += 1
            continue
        found["spec"] += row.cells["gpu_spec"] not in ("", "nan")
        yield job


def _job(row: Row, id: str) -> SimJob | None:
    share = _share(row)
    cpus = row.number("cpu_milli", high=limits.MAX_CPUS * _MILLI) / _MILLI
    mem_bytes = round(row.number("memory_mib", high=limits.MAX_MEM_BYTES / MIB) * MIB)
    job_class = CLASSES[row.word("qos", CLASSES)]
    created, deleted = row.number("creation_time"), row.number("deletion_time")
    if row.cells["scheduled_time"] == "":
        return None
    runtime_s = deleted - row.number("scheduled_time")
    if runtime_s < 0:
        raise row.fault("deletion_time", f"{deleted:g} is before scheduled_time, which makes a negative run time")
    return SimJob(
        id=id, submit_s=created, runtime_s=runtime_s, job_class=job_class, gpus_min=share, gpus_max=share, cpus=cpus,
        mem_bytes=mem_bytes,
    )  # fmt: skip


def _share(row: Row) -> int:
    count, milli = row.whole("num_gpu", high=limits.MAX_GPUS), row.whole("gpu_milli", high=_MILLI)
    if count > 0 and milli == 0:
        raise row.fault("gpu_milli", f"0 is no share of {count} GPUs")
    if count > 1 and milli != _MILLI:
        raise row.fault("gpu_milli", f"{milli} of {count} GPUs: only one GPU can be shared")
    if count != 1:
        return count * WHOLE
    return WHOLE // min(_MILLI // milli, _SMALLEST)
