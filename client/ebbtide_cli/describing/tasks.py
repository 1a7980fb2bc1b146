"""Print the tasks of an array or sweep as a table: each task's values, state and results."""

from collections.abc import Iterator, Sequence

from ebbtide_protos.quantities import abbreviated
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.describing.facts import state_of
from ebbtide_cli.describing.jobs import progress_words, times_words
from ebbtide_cli.errors import USAGE, Failure

LOSS = "loss"


def in_order(tasks: Sequence[client_pb2.Job], by: str | None, *, reverse: bool = False) -> list[client_pb2.Job]:
    """Sort the tasks by a metric, a param or their loss, the least first; without ``by``, keep their order.

    Tasks without such a value always come last. Raises `Failure`.
    """
    if not tasks:
        raise Failure("show: --sort: is for arrays, which have tasks", USAGE)
    if by is None:
        return list(reversed(tasks)) if reverse else list(tasks)
    keys = {task.job_id: _value(task, by) for task in tasks}
    if all(key is None for key in keys.values()):
        known = ", ".join(dict.fromkeys([*_measured(tasks), *(name for task in tasks for name in sorted(task.params))]))
        raise Failure(f"show: --sort: no task has {abbreviated(by)!r}{f', but {known}' if known else ''}", USAGE)
    found = [task for task in tasks if keys[task.job_id] is not None]
    found.sort(key=lambda task: _rank(keys[task.job_id]), reverse=reverse)
    return found + [task for task in tasks if keys[task.job_id] is None]


def _rank(value: float | str | None) -> tuple[bool, float, str]:
    """Return a sort key with which numbers come before words."""
    return (False, value, "") if isinstance(value, float) else (True, 0.0, str(value))


def print_tasks(tasks: Sequence[client_pb2.Job]) -> None:
    """Print a line for each task, with a column for the loss and for each metric that any of them has reported."""
    from ebbtide_cli.terminal.drawing import print_table

    measured = _measured(tasks)
    titles = ("ID", "PARAMS", "STATE", "PROGRESS", *(name.upper() for name in measured), "WAITED/RAN", "REASON")
    print_table(titles, (_row(task, measured) for task in tasks))


def _row(job: client_pb2.Job, measured: Sequence[str]) -> tuple[str, ...]:
    params = " ".join(f"{name}={value}" for name, value in sorted(job.params.items()))
    values = [_of_progress(job, name) for name in measured]
    words = ["-" if value is None else f"{value:.4g}" for value in values]
    return (job.job_id, params, state_of(job), progress_words(job), *words, times_words(job), job.reason)


def _measured(tasks: Sequence[client_pb2.Job]) -> list[str]:
    """Return the names of what tasks have reported; the metric of successive halving comes first."""
    return list(dict.fromkeys(_names(tasks)))


def _names(tasks: Sequence[client_pb2.Job]) -> Iterator[str]:
    for task in tasks:
        if task.spec.HasField("asha") and _of_progress(task, task.spec.asha.metric) is not None:
            yield task.spec.asha.metric
    if any(task.progress.HasField("loss") for task in tasks):
        yield LOSS
    for task in tasks:
        yield from sorted(task.progress.metrics)


def _value(task: client_pb2.Job, name: str) -> float | str | None:
    """Return the value of a metric or param; that of a param is a number if it can be read as one."""
    measured = _of_progress(task, name)
    if measured is not None or name not in task.params:
        return measured
    try:
        return float(task.params[name])
    except ValueError:
        return task.params[name]


def _of_progress(task: client_pb2.Job, name: str) -> float | None:
    progress = task.progress
    if name in progress.metrics:
        return progress.metrics[name]
    return progress.loss if name == LOSS and progress.HasField("loss") else None
