"""Logs in the Standard Workload Format (version 2.2), the format of the Parallel Workloads Archive."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from ebbtide_core import limits
from ebbtide_core.model import WHOLE

from ebbtide_sim.workload import SimJob, Workload, WorkloadError
from ebbtide_sim.workloads.arranging import bags_of, workload_of
from ebbtide_sim.workloads.table import MAX_TIME_S, fault, opened

Arrival = Literal["submit", "start"]

FIELDS: Final = (
    "job number", "submit time", "wait time", "run time", "allocated processors", "average CPU time", "used memory",
    "requested processors", "requested time", "requested memory", "status", "user", "group", "executable", "queue",
    "partition", "preceding job", "think time",
)  # fmt: skip
_PARTIAL: Final = (2.0, 3.0, 4.0)
_CANCELLED: Final = 5.0

NO_RUN_TIME: Final = "run time unknown"
NO_PROCESSORS: Final = "number of processors unknown"
NO_WAIT: Final = "waiting time unknown, so no start to arrive at"
TOO_LARGE: Final = f"more processors than the {limits.MAX_GPUS} that a job may ask for"
PART_OF_JOB: Final = "lines of a part of a job (status 2, 3, 4)"
NEVER_RAN: Final = "cancelled before they ran"


class _Run(NamedTuple):
    """A line of the log that can be replayed."""

    id: str
    arrival_s: float
    start_s: float
    run_s: float
    processors: int
    user: str
    requested_s: float | None


def arrival_named(name: str) -> Arrival:
    """The arrival of that name; `WorkloadError` if there is none."""
    match name:
        case "submit" | "start":
            return name
        case _:
            raise WorkloadError(f"--arrival: {name!r} is neither submit nor start")


def read_swf(path: Path, arrival: Arrival = "submit") -> Workload:
    """Read an SWF log; each of its processors counts as one GPU, and CPUs and memory are not taken from it.

    Jobs have their allocated processors, or the requested ones where those are unknown. With ``arrival`` ``start``, a
    job arrives when it once started (submit + wait). Jobs that cannot be replayed are counted in ``skipped``. Bags are
    the jobs of seed 001, from the times at which the log's tasks ran.
    """
    skipped: Counter[str] = Counter()
    runs = list(_runs(path, arrival, skipped))
    bags = bags_of((run.user, run.start_s, run.start_s + run.run_s) for run in runs)
    start_s = min((run.arrival_s for run in runs), default=0.0)
    jobs = [
        SimJob(
            id=run.id,
            submit_s=run.arrival_s - start_s,
            runtime_s=run.run_s,
            user=run.user,
            bag=bag,
            gpus_min=run.processors * WHOLE,
            gpus_max=run.processors * WHOLE,
            requested_s=run.requested_s,
        )
        for run, bag in zip(runs, bags, strict=True)
    ]
    notes = ("one processor of the log counts as one GPU", f"jobs arrive at their {arrival} time of the log")
    return workload_of(path.name, jobs, skipped, notes)


def _runs(path: Path, arrival: Arrival, skipped: Counter[str]) -> Iterator[_Run]:
    seen: dict[str, int] = {}
    with opened(path) as text:
        for line, content in enumerate(text, start=1):
            cells = content.split()
            if not cells or cells[0].startswith(";"):
                continue
            values = _numbers(path, line, cells)
            reason = _unusable(values, arrival)
            if reason is not None:
                skipped[reason] += 1
                continue
            run = _run(cells, values, arrival)
            if seen.setdefault(run.id, line) != line:
                raise fault(path, line, FIELDS[0], f"{run.id} is the one of line {seen[run.id]}, too; must be unique")
            yield run


def _numbers(path: Path, line: int, cells: list[str]) -> list[float]:
    if len(cells) != len(FIELDS):
        raise fault(path, line, "line", f"has {len(cells)} fields, SWF has {len(FIELDS)}")
    try:
        values = list(map(float, cells))
    except ValueError:
        raise _not_a_number(path, line, cells) from None
    # Written out, because it is what most of the time of reading goes into; a comparison with NaN is false.
    number, submit, wait, run, allocated, requested = *values[:5], values[7]
    in_range = 0 <= number <= MAX_TIME_S and 0 <= submit <= MAX_TIME_S and -1 <= allocated <= MAX_TIME_S
    in_range = in_range and -1 <= requested <= MAX_TIME_S
    known = (0 <= wait <= MAX_TIME_S or wait == -1) and (0 <= run <= MAX_TIME_S or run == -1)
    whole = number % 1 == allocated % 1 == requested % 1 == 0
    if in_range and known and whole and math.isfinite(sum(values)):
        return values
    raise _out_of_range(path, line, cells, values)


def _out_of_range(path: Path, line: int, cells: list[str], values: list[float]) -> WorkloadError:
    """Which of the values is at fault; -1 says that one is not known, but a job is submitted at some time."""
    for index in (0, 1, 2, 3, 4, 7):
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


def _unusable(values: list[float], arrival: Arrival) -> str | None:
    """Why the job of this line cannot be replayed."""
    status, run_s, processors = values[10], values[3], _processors(values)
    if status in _PARTIAL:
        return PART_OF_JOB
    if status == _CANCELLED and run_s <= 0:
        return NEVER_RAN
    if run_s < 0:
        return NO_RUN_TIME
    if processors <= 0:
        return NO_PROCESSORS
    if processors > limits.MAX_GPUS:
        return TOO_LARGE
    return NO_WAIT if arrival == "start" and values[2] < 0 else None


def _processors(values: list[float]) -> float:
    return values[4] if values[4] > 0 else values[7]


def _run(cells: list[str], values: list[float], arrival: Arrival) -> _Run:
    submit_s = values[1]
    start_s = submit_s + max(values[2], 0.0)
    user = cells[11] if values[11] >= 0 else ""
    arrival_s = start_s if arrival == "start" else submit_s
    requested_s = values[8] if 0 < values[8] <= MAX_TIME_S else None
    return _Run(cells[0], arrival_s, start_s, values[3], int(_processors(values)), user, requested_s)
