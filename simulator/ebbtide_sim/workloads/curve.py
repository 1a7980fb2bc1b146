"""Speed-up curves from files."""

from pathlib import Path
from typing import Final

from ebbtide_sim.speedup import Speedup, curve
from ebbtide_sim.workload import WorkloadError
from ebbtide_sim.workloads.table import read_rows

COLUMNS: Final = ("gpus", "speedup")
MAX_SPEEDUP: Final = 1e6


def read_curve(path: Path) -> Speedup:
    """See `ebbtide_sim.speedup.load_speedup`."""
    points: list[tuple[int, float]] = []
    for row in read_rows(path, COLUMNS, ()):
        share, speed = row.gpus("gpus"), row.number("speedup", high=MAX_SPEEDUP)
        if share == 0 or speed == 0:
            raise row.fault("gpus" if share == 0 else "speedup", "0 is not more than 0")
        if points and share <= points[-1][0]:
            raise row.fault("gpus", f"{row.cells['gpus']} is not more than in the line before")
        if points and speed < points[-1][1]:
            raise row.fault("speedup", f"{speed:g} is less than the {points[-1][1]:g} of fewer GPUs; it must not fall")
        points.append((share, speed))
    try:
        return curve(points)
    except ValueError as error:
        raise WorkloadError(f"{path}: {error}") from None
