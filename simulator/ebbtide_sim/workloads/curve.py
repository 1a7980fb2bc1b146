"""Loads speed-up curves by name, or from files."""

import os
from pathlib import Path
from typing import Final

from ebbtide_core.model.spelling import choices

from ebbtide_sim.speedup import CURVES, Speedup, curve
from ebbtide_sim.workload import WorkloadError
from ebbtide_sim.workloads.table import read_rows

COLUMNS: Final = ("gpus", "speedup")
MAX_SPEEDUP: Final = 1e6


def load_speedup(name_or_path: str) -> Speedup:
    """Return one of `CURVES` by name, or a curve from a CSV file with the columns ``gpus,speedup``.

    GPU counts may be shares (``1/4``) and must increase; the speed-up stays constant after the last. Raise
    `WorkloadError` for a file that cannot be read or is not a valid curve.
    """
    if name_or_path in CURVES:
        return CURVES[name_or_path]
    path = Path(name_or_path)
    if not os.path.isfile(path):
        raise WorkloadError(f"{name_or_path}: neither a file nor one of {choices(name_or_path, CURVES)}")
    return _read_curve(path)


def _read_curve(path: Path) -> Speedup:
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
