"""Reads the workloads of Pollux (OSDI 2021): training jobs by application, from its simulator's ``workloads``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ebbtide_core.model import limits
from ebbtide_core.model.types import WHOLE

from ebbtide_sim.workload import SimJob, Workload
from ebbtide_sim.workloads.arranging import workload_of
from ebbtide_sim.workloads.table import read_rows

COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")
HOUR_S: Final = 3600.0
GPU_HOURS: Final = {
    "cifar10": 0.5, "ncf": 0.5, "deepspeech2": 3.0, "bert": 3.0, "yolov3": 30.0, "imagenet": 300.0,
}  # fmt: skip
"""Assumed work of one job, in hours on one GPU. The files have no run times: Pollux' generator draws the application
by a Philly job's GPU time (under 1 h, 1 to 10 h, 10 to 100 h, 100 to 1000 h), and these are the middles of the ranges
on a logarithmic scale (half an hour for the first)."""
EFFICIENCY: Final = 0.65
"""The assumed efficiency of jobs on several GPUs; the generator offers GPU counts with 50 to 80 % efficiency."""


def read_pollux(path: Path) -> Workload:
    """Read a workload with the columns `COLUMNS`; run times are assumed, see `GPU_HOURS` and `EFFICIENCY`.

    Jobs are rigid, with as many GPUs as they have replicas.
    """
    notes = (
        "run times are not in the file: assumed from the application's GPU hours ("
        + ", ".join(f"{name} {hours:g}" for name, hours in GPU_HOURS.items())
        + f") at {EFFICIENCY:.0%} efficiency on more than one GPU",
    )
    return workload_of(path.name, _jobs(path), {}, notes)


def _jobs(path: Path) -> Iterator[SimJob]:
    seen: dict[str, int] = {}
    for row in read_rows(path, COLUMNS):
        replicas = row.whole("num_replicas", low=1, high=limits.MAX_GPUS)
        row.whole("batch_size", low=1)
        work_s = GPU_HOURS[row.word("application", GPU_HOURS)] * HOUR_S
        speed = replicas * EFFICIENCY if replicas > 1 else 1.0
        yield SimJob(
            id=row.unseen("name", seen),
            submit_s=row.number("time"),
            runtime_s=work_s / speed,
            gpus_min=replicas * WHOLE,
            gpus_max=replicas * WHOLE,
        )
