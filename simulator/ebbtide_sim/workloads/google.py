"""Reads task events of Google's cluster trace of 2011 (clusterdata-2011-2, format v2.1), HYBRID's workload."""

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from ebbtide_core.model.types import JobClass

from ebbtide_sim.workload import SimJob, Workload
from ebbtide_sim.workloads.arranging import workload_of
from ebbtide_sim.workloads.table import Row, fault, opened

COLUMNS: Final = (
    "time", "missing_info", "job_id", "task_index", "machine_id", "event_type", "user", "scheduling_class", "priority",
    "cpu_request", "memory_request", "disk_request", "different_machine",
)  # fmt: skip
"""The columns of the table ``task_events``, which has no header. Times are in microseconds; requests are fractions of
the largest machine."""
MICROSECOND: Final = 1e-6
MAX_TIME_US: Final = 2**63 - 1
"""The time that the trace gives to events after its end."""
CLASSES: Final = 12
PRODUCTION: Final = 9
"""Priorities 9 to 11 are production."""

BEFORE_TRACE: Final = "submitted before the trace began"
UNFINISHED: Final = "not seen to finish"
UNSCHEDULED: Final = "not seen to be scheduled before they finished"


class TraceEvent(IntEnum):
    """What happened to a task."""

    SUBMIT = 0
    SCHEDULE = 1
    EVICT = 2
    FAIL = 3
    FINISH = 4
    KILL = 5
    LOST = 6
    UPDATE_PENDING = 7
    UPDATE_RUNNING = 8


@dataclass(slots=True)
class _Task:
    submitted: float
    bag: str
    user: str
    priority: int
    scheduled: float | None = None
    finished: float | None = None


def read_google(path: Path) -> Workload:
    """Read the table of task events (see `COLUMNS`) or a part of it; parts can be joined with ``cat``.

    A task arrives with its first SUBMIT, and its run time is from its last SCHEDULE to its first FINISH. Each needs one
    slot, which is one GPU. Priority p of the trace, where higher is more urgent, becomes 12 - p; priorities 9 to
    11, which are production, become class te. Tasks submitted before the trace began, and tasks that did not finish,
    are counted in ``skipped``.
    """
    skipped: Counter[str] = Counter()
    tasks: dict[tuple[str, str], _Task] = {}
    earlier: set[tuple[str, str]] = set()
    for row in _rows(path):
        _take(row, tasks, earlier)
    jobs = list(_jobs(tasks, skipped))
    skipped[BEFORE_TRACE] = len(earlier)
    notes = (
        "a task needs one slot; its requests of CPU and memory, relative to the largest machine, are not used",
        "run times are of the run that finished, as the machine of the trace was shared",
    )
    return workload_of(path.name, jobs, skipped, notes)


def _rows(path: Path) -> Iterator[Row]:
    with opened(path) as text:
        reader = csv.reader(text, strict=True)
        try:
            for cells in reader:
                if len(cells) != len(COLUMNS):
                    raise fault(path, reader.line_num, "line", f"has {len(cells)} cells, the table has {len(COLUMNS)}")
                yield Row(path, reader.line_num, dict(zip(COLUMNS, cells, strict=True)))
        except csv.Error as error:
            raise fault(path, reader.line_num, "line", f"is not CSV: {error}") from None


def _take(row: Row, tasks: dict[tuple[str, str], _Task], earlier: set[tuple[str, str]]) -> None:
    key = (row.text("job_id"), row.text("task_index"))
    time = row.number("time", high=MAX_TIME_US)
    event = TraceEvent(row.whole("event_type", high=max(TraceEvent)))
    priority = row.whole("priority", high=CLASSES - 1)
    task = tasks.get(key)
    if task is None:
        if event is not TraceEvent.SUBMIT or time == 0:
            earlier.add(key)
        elif key not in earlier:
            tasks[key] = _Task(time, key[0], row.text("user", ""), priority)
        return
    if task.finished is not None:
        return
    if event is TraceEvent.SCHEDULE:
        task.scheduled = time
    elif event is TraceEvent.FINISH:
        if task.scheduled is not None and time < task.scheduled:
            raise row.fault("time", f"{time:.0f} is before the task was scheduled, which makes a negative run time")
        task.finished = time


def _jobs(tasks: dict[tuple[str, str], _Task], skipped: Counter[str]) -> Iterator[SimJob]:
    for (job, index), task in tasks.items():
        if task.scheduled is None or task.finished is None:
            skipped[UNFINISHED if task.finished is None else UNSCHEDULED] += 1
            continue
        yield SimJob(
            id=f"{job}/{index}",
            submit_s=task.submitted * MICROSECOND,
            runtime_s=(task.finished - task.scheduled) * MICROSECOND,
            job_class=JobClass.TRIAL_AND_ERROR if task.priority >= PRODUCTION else JobClass.BEST_EFFORT,
            user=task.user,
            bag=task.bag,
            priority=CLASSES - task.priority,
        )
