"""Reads Microsoft's Philly trace as the authors of Pollux prepared it: GPU jobs with known run times."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ebbtide_core.model import limits
from ebbtide_core.model.types import WHOLE

from ebbtide_sim.workload import SimJob, Workload
from ebbtide_sim.workloads.arranging import workload_of
from ebbtide_sim.workloads.table import Row, read_rows

COLUMNS: Final = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")
NO_GPUS: Final = "jobs without GPUs"
TOO_LARGE: Final = f"more GPUs than the {limits.MAX_GPUS} that a job may ask for"


def read_philly(path: Path) -> Workload:
    """Read a CSV with the columns `COLUMNS`: local submission time, run time in seconds, GPUs, their product, cluster.

    A job's id is its row number, from 1; its virtual cluster stands for its user. Ties keep the file's order.
    """
    skipped: Counter[str] = Counter()
    jobs = list(_jobs(path, skipped))
    notes = (
        "CPUs, memory and GPU memory are not in the trace: jobs need GPUs only",
        "users are not in the trace: a virtual cluster counts as one",
    )
    return workload_of(path.name, jobs, skipped, notes)


def _jobs(path: Path, skipped: Counter[str]) -> Iterator[SimJob]:
    for number, row in enumerate(read_rows(path, COLUMNS), start=1):
        count = row.whole("num_gpus")
        runtime_s = row.number("duration")
        submit_s = _seconds(row)
        row.number("gpu_time")
        if count == 0 or count > limits.MAX_GPUS:
            skipped[NO_GPUS if count == 0 else TOO_LARGE] += 1
            continue
        share = count * WHOLE
        user = row.text("cluster", "")
        yield SimJob(id=str(number), submit_s=submit_s, runtime_s=runtime_s, user=user, gpus_min=share, gpus_max=share)


def _seconds(row: Row) -> float:
    """Return the time of submission. It has no time zone, so a day of 23 or 25 hours counts as one of 24."""
    cell = row.text("timestamp")
    try:
        return datetime.strptime(cell, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise row.fault("timestamp", f"{cell[:40]!r} is not a time like 2017-10-09 07:01:55") from None
