"""Reads our own CSV of jobs, for workloads written by hand or by other programs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ebbtide_core.model import limits
from ebbtide_core.model.types import WHOLE, JobClass, gpus

from ebbtide_sim.workload import SimJob, Workload
from ebbtide_sim.workloads.table import Row, read_rows

REQUIRED: Final = ("id", "submit_s", "runtime_s")
OPTIONAL: Final = (
    "class", "user", "bag", "gpus_min", "gpus_max", "gpu_mem_gib", "cpus", "mem_gib", "grace_s", "priority", "weight",
    "preemptible", "requested_s",
)  # fmt: skip
NOTES: Final = ("command", "utilisation")
"""Columns that `ebb observe` writes for people."""
_TRUTH: Final = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def read_plain(path: Path) -> Workload:
    """Read our CSV: a header with the columns `REQUIRED` and any of `OPTIONAL`, in any order.

    Missing or empty cells have defaults: class ``be``, 1 GPU (if only one of ``gpus_min`` and ``gpus_max`` is given, it
    stands for both), the GPU memory of the job's share, no CPUs, memory or grace period, priority 42, weight 1,
    preemptible, and no requested time. GPU counts may be shares (``1/4``); memory is in GiB, times in seconds; lines
    need not be sorted. The columns `NOTES` are allowed and ignored.
    """
    jobs = sorted(_jobs(path), key=lambda job: job.submit_s)
    return Workload(path.name, jobs)


def _jobs(path: Path) -> Iterator[SimJob]:
    seen: dict[str, int] = {}
    for row in read_rows(path, REQUIRED, OPTIONAL + NOTES):
        low, high = _range(row)
        yield SimJob(
            id=row.unseen("id", seen),
            submit_s=row.number("submit_s"),
            runtime_s=row.number("runtime_s"),
            job_class=JobClass(row.word("class", [each.value for each in JobClass], JobClass.BEST_EFFORT.value)),
            user=row.text("user", ""),
            bag=row.text("bag", ""),
            gpus_min=low,
            gpus_max=high,
            gpu_mem_bytes=row.gib("gpu_mem_gib", 0.0),
            cpus=row.number("cpus", 0.0, high=limits.MAX_CPUS),
            mem_bytes=row.gib("mem_gib", 0.0),
            grace_s=row.number("grace_s", 0.0, high=limits.MAX_GRACE_S),
            priority=row.whole("priority", limits.DEFAULT_PRIORITY, limits.MIN_PRIORITY, limits.MAX_PRIORITY),
            weight=row.number("weight", 1.0, limits.MIN_WEIGHT, limits.MAX_WEIGHT),
            preemptible=_TRUTH[row.word("preemptible", _TRUTH, "true")],
            requested_s=row.number("requested_s") if row.cells.get("requested_s") else None,
        )


def _range(row: Row) -> tuple[int, int]:
    low, high = (row.gpus(field) if row.cells.get(field) else None for field in ("gpus_min", "gpus_max"))
    if low is None and high is None:
        return WHOLE, WHOLE
    low = high if low is None else low
    high = low if high is None else high
    assert low is not None
    assert high is not None
    if low > high:
        raise row.fault("gpus_min", f"{gpus(low)} is more than the gpus_max of {gpus(high)}")
    if low == 0 < high:
        raise row.fault("gpus_min", "an elastic job needs more than 0 GPUs at least")
    return low, high
