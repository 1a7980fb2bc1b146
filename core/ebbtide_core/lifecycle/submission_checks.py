"""Checks submits and resizes against limits and quotas, and refuses what is too much or could never start."""

import re
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.job.job import Job
from ebbtide_core.model import limits
from ebbtide_core.model.spec import JobSpec, SpecError
from ebbtide_core.model.types import WHOLE, Task, gpus
from ebbtide_core.state import ClusterState

_PARAM: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class LimitReachedError(Exception):
    """A limit on jobs, their GPUs, or their size in memory is reached; the message names it."""


def check_submit(state: ClusterState, event: e.JobSubmitted) -> None:
    """Raise `SpecError` or `LimitReachedError` if the job, or the array that it is the first task of, is refused."""
    gates, spec, task = state.gates, event.spec, event.task
    if task is not None and task.array in gates.arrays:
        return  # the check of the first task was for all tasks: they are accepted together
    count = 1 if task is None else task.size
    if len(state.unfinished) + count > limits.MAX_UNFINISHED_JOBS:
        raise LimitReachedError(f"the limit of {limits.MAX_UNFINISHED_JOBS} unfinished jobs is reached")
    if spec.asha is not None and task is None and event.again_of is None:
        raise SpecError("--asha", "compares the tasks of an array: submit one with --array or --param")
    for dependency in spec.after:
        if dependency.job not in state.jobs and dependency.job not in gates.arrays:
            raise SpecError("--after", f"job {dependency.job[:40]} does not exist")
    if task is not None and task.max_slots and spec.gpus_min > task.max_slots:
        raise SpecError("--max-slots", f"{gpus(task.max_slots)} are less than the {gpus(spec.gpus_min)} of one task")
    if gates.limit_users:
        _check_quota(state, event.user, spec, count)


def _check_quota(state: ClusterState, user: str, spec: JobSpec, count: int) -> None:
    quota = state.gates.quotas.of(user)
    if quota.gpus is not None and spec.gpus_min > quota.gpus:
        most = gpus(quota.gpus)
        raise SpecError("--gpus", f"{gpus(spec.gpus_min)} is more than the {most} of the quota of {user}")
    user_quota = state.gates.user_quotas.get(user)
    unfinished = 0 if user_quota is None else user_quota.unfinished
    if quota.queued is not None and unfinished + count > quota.queued:
        more = "one more is" if count == 1 else f"{count} more are"
        raise LimitReachedError(f"{user} has {unfinished} unfinished jobs: {more} over the limit of {quota.queued}")


def check_resize(job: Job, gpus_min: int) -> None:
    """Raise `LimitReachedError` if ``gpus_min`` parts are more than the job's array or its user's quota leaves it."""
    admission = job.admission
    if admission is None:
        return
    for cap, whose in zip(admission.caps, (f"array {admission.group.array}", f"the quota of {job.user}"), strict=False):
        others = cap.parts - admission.cost if admission.admitted else 0
        if cap.max_parts is not None and others + gpus_min > cap.max_parts:
            left = gpus(max(0, cap.max_parts - others))
            raise LimitReachedError(
                f"--gpus: {gpus(gpus_min)} is more than the {left} left of the {gpus(cap.max_parts)} of {whose}"
            )


def check_task(task: Task) -> None:
    """Raise `SpecError` if the index or the params of a task are not allowed."""
    if not 0 <= task.index <= limits.MAX_ARRAY_INDEX:
        raise SpecError("--array", f"{task.index} is not between 0 and {limits.MAX_ARRAY_INDEX}")
    if len(task.params) > limits.MAX_PARAMS:
        raise SpecError("--param", f"{len(task.params)} are over the limit of {limits.MAX_PARAMS}")
    for name in task.params:
        if not _PARAM.fullmatch(name):
            raise SpecError("--param", f"{name[:40]!r} is not a name (letters, digits and _)")


def check_limits(state: ClusterState, event: e.ArrayChanged) -> None:
    """Raise `SpecError` if the array would have too few GPUs for one of its tasks."""
    check_caps(event.max_concurrent, event.max_slots)
    tasks = state.gates.arrays[event.job].tasks.values()
    needed = max((job.gpus_min for job in tasks if not job.state.finished), default=0)
    if event.max_slots and needed > event.max_slots:
        raise SpecError("--max-slots", f"{gpus(event.max_slots)} are less than the {gpus(needed)} of one task")


def check_caps(max_concurrent: int, max_slots: int) -> None:
    """Raise `SpecError` unless an array may have these limits; 0 means no limit."""
    if not 0 <= max_concurrent <= limits.MAX_UNFINISHED_JOBS:
        raise SpecError("--max-concurrent", f"{max_concurrent} is not between 0 and {limits.MAX_UNFINISHED_JOBS}")
    if not 0 <= max_slots <= limits.MAX_GPUS * WHOLE:
        raise SpecError("--max-slots", f"{gpus(max_slots)} is not between 0 and {limits.MAX_GPUS}")
