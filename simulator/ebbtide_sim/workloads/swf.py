"""Reads logs in the Standard Workload Format (version 2.2), the format of the Parallel Workloads Archive."""

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from ebbtide_core.model import limits
from ebbtide_core.model.types import WHOLE

from ebbtide_sim.workload import SimJob, Workload, WorkloadError
from ebbtide_sim.workloads.arranging import bags_of, workload_of
from ebbtide_sim.workloads.table import MAX_TIME_S, fault, opened

Arrival = Literal["submit", "start"]
Floats = npt.NDArray[np.float64]

FIELDS: Final = (
    "job number", "submit time", "wait time", "run time", "allocated processors", "average CPU time", "used memory",
    "requested processors", "requested time", "requested memory", "status", "user", "group", "executable", "queue",
    "partition", "preceding job", "think time",
)  # fmt: skip
_USED: Final = (0, 1, 2, 3, 4, 7, 8, 10, 11)
_CHECKED: Final = (0, 1, 2, 3, 4, 7)
_PARTIAL: Final = (2.0, 3.0, 4.0)
_CANCELLED: Final = 5.0

NO_RUN_TIME: Final = "run time unknown"
NO_PROCESSORS: Final = "number of processors unknown"
NO_WAIT: Final = "waiting time unknown, so no start to arrive at"
TOO_LARGE: Final = f"more processors than the {limits.MAX_GPUS} that a job may ask for"
PART_OF_JOB: Final = "lines of a part of a job (status 2, 3, 4)"
NEVER_RAN: Final = "cancelled before they ran"


def arrival_named(name: str) -> Arrival:
    """Return the arrival of that name; raise `WorkloadError` if there is none."""
    match name:
        case "submit" | "start":
            return name
        case _:
            raise WorkloadError(f"--arrival: {name!r} is neither submit nor start")


def read_swf(path: Path, arrival: Arrival = "submit") -> Workload:
    """Read an SWF log; each of its processors counts as one GPU, and its CPU and memory fields are ignored.

    Jobs have their allocated processors, or the requested ones if the former are unknown. With ``arrival`` ``start``, a
    job arrives when it started in the log (submit + wait). Jobs that cannot be replayed are counted in ``skipped``. The
    bags, seed 001's "jobs", are derived from the times at which the log's jobs ran.
    """
    values = _table(path)
    number, submit, wait, run, allocated, requested, requested_s, status, user = values[:, _USED].T
    processors = np.where(allocated > 0, allocated, requested)
    usable, skipped = _usable(status, run, processors, wait, arrival)
    start = submit + np.maximum(wait, 0.0)
    came = (start if arrival == "start" else submit)[usable]
    came -= came.min(initial=math.inf)
    users = [f"{user:.0f}" if user >= 0 else "" for user in user[usable].tolist()]
    bags = bags_of(zip(users, start[usable].tolist(), (start + run)[usable].tolist(), strict=True))
    jobs = [
        SimJob(
            id=id,
            submit_s=submit_s,
            runtime_s=run_s,
            user=user,
            bag=bag,
            gpus_min=parts,
            gpus_max=parts,
            requested_s=asked_s if 0 < asked_s <= MAX_TIME_S else None,
        )
        for id, submit_s, run_s, user, bag, parts, asked_s in zip(
            _ids(path, number, usable),
            came.tolist(),
            run[usable].tolist(),
            users,
            bags,
            (processors[usable].astype(np.int64) * WHOLE).tolist(),
            requested_s[usable].tolist(),
            strict=True,
        )
    ]
    notes = ("one processor of the log counts as one GPU", f"jobs arrive at their {arrival} time of the log")
    return workload_of(path.name, jobs, skipped, notes)


def _table(path: Path) -> Floats:
    """Read all lines of the log at once; only if a line is invalid, look for the first such line."""
    with opened(path) as text, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "loadtxt: input contained no data")
        try:
            values = np.loadtxt((line for line in text if not line.lstrip().startswith(";")), comments=None, ndmin=2)
        except ValueError:
            values = None
    if values is not None and not values.size:
        return np.empty((0, len(FIELDS)))
    if values is None or values.shape[1] != len(FIELDS) or not _in_range(values):
        for line, cells in _lines(path):
            _check(path, line, cells)
        raise WorkloadError(f"{path}: is no SWF log")
    return values


def _in_range(values: Floats) -> bool:
    number, submit, wait, run, allocated, requested = values[:, _CHECKED].T
    whole = (number % 1 == 0) & (allocated % 1 == 0) & (requested % 1 == 0)
    known = (number >= 0) & (submit >= 0) & (allocated >= -1) & (requested >= -1)
    times = ((wait >= 0) | (wait == -1)) & ((run >= 0) | (run == -1))
    bounded = (values[:, _CHECKED] <= MAX_TIME_S).all(axis=1) & np.isfinite(values).all(axis=1)
    return bool((whole & known & times & bounded).all())


def _usable(
    status: Floats, run: Floats, processors: Floats, wait: Floats, arrival: Arrival
) -> tuple[npt.NDArray[np.bool_], dict[str, int]]:
    """Return which lines can be replayed, and how many cannot by the first reason that holds."""
    usable, skipped = np.ones(len(status), dtype=np.bool_), {}
    for reason, holds in (
        (PART_OF_JOB, np.isin(status, _PARTIAL)),
        (NEVER_RAN, (status == _CANCELLED) & (run <= 0)),
        (NO_RUN_TIME, run < 0),
        (NO_PROCESSORS, processors <= 0),
        (TOO_LARGE, processors > limits.MAX_GPUS),
        (NO_WAIT, (wait < 0) & (arrival == "start")),
    ):
        skipped[reason] = int((usable & holds).sum())
        usable &= ~holds
    return usable, skipped


def _ids(path: Path, number: Floats, usable: npt.NDArray[np.bool_]) -> list[str]:
    """Return the job numbers of usable lines, which must be unique."""
    numbers = number[usable].astype(np.int64).tolist()
    if len(set(numbers)) < len(numbers):
        seen: dict[int, int] = {}
        for (line, cells), counts in zip(_lines(path), usable.tolist(), strict=True):
            id = int(float(cells[0]))
            if counts and seen.setdefault(id, line) != line:
                raise fault(path, line, FIELDS[0], f"{id} is the one of line {seen[id]}, too; must be unique")
    return list(map(str, numbers))


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines that are not comments, with their numbers."""
    with opened(path) as text:
        for line, content in enumerate(text, start=1):
            cells = content.split()
            if cells and not cells[0].startswith(";"):
                yield line, cells


def _check(path: Path, line: int, cells: list[str]) -> None:
    """Raise `WorkloadError` if this line is invalid."""
    if len(cells) != len(FIELDS):
        raise fault(path, line, "line", f"has {len(cells)} fields, SWF has {len(FIELDS)}")
    try:
        values = list(map(float, cells))
    except ValueError:
        raise _not_a_number(path, line, cells) from None
    if not _in_range(np.array([values])):
        raise _out_of_range(path, line, cells, values)


def _out_of_range(path: Path, line: int, cells: list[str], values: list[float]) -> WorkloadError:
    """Return an error that names the wrong value; -1 means unknown where that is allowed (not for submit times)."""
    for index in _CHECKED:
        value, unknown = values[index], index > 1
        if not (0 <= value <= MAX_TIME_S or (unknown and value == -1)):
            limit = f"between 0 and {MAX_TIME_S:g}" + (", nor -1 for unknown" if unknown else "")
            return fault(path, line, FIELDS[index], f"{cells[index]} is not {limit}")
        if index in (0, 4, 7) and value % 1:
            return fault(path, line, FIELDS[index], f"{cells[index]} is not a whole number")
    index = next(index for index, value in enumerate(values) if not math.isfinite(value))
    return fault(path, line, FIELDS[index], f"{cells[index]} is not a finite number")


def _not_a_number(path: Path, line: int, cells: list[str]) -> WorkloadError:
    for field, cell in zip(FIELDS, cells, strict=True):
        try:
            float(cell)
        except ValueError:
            return fault(path, line, field, f"{cell[:40]!r} is not a number")
    raise AssertionError("every field is a number")
