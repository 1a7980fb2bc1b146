"""Finds the jobs that the ids in a request name (``17``, ``17.3``, ``17.2-5``, ``@~1``), and shows them together."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.events import Event
from ebbtide_core.job.arrays import Array, ranges, selected
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle.forgetting import unknown_job
from ebbtide_core.model.types import FINISHED, JobId, JobState, gpus
from ebbtide_protos.spec import parts_to_share, spec_to_message
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.views import STATES, job_message, listed_command
from ebbtide_master.loop import PAUSE, Parts, RefusedError

LIVE = (JobState.RUNNING, JobState.STARTING, JobState.SUSPENDING, JobState.STOPPING, JobState.UNREACHABLE)
MOST_LIVELY = (*LIVE, JobState.SUSPENDED, JobState.PENDING, JobState.FAILED, JobState.CANCELLED, JobState.COMPLETED)
"""An array has the first of these states that any of its tasks has."""
JOBS_OF_A_PART: Final = 100
"""Jobs that are summed up without a break, in less than a millisecond."""
FINISHED_STATES = [STATES[state] for state in FINISHED]


# --- which jobs ---


def jobs_named(cluster: Cluster, id: str) -> list[Job]:
    """Return the job ``id``, or all tasks that it names (``17`` is an array, or ``17.2-5``); none if it is unknown."""
    job = cluster.job(JobId(id))
    if job is not None:
        return [job]
    array = array_of(cluster, id)
    return selected(array, id.partition(".")[2]) if array is not None else []


def array_of(cluster: Cluster, id: str) -> Array | None:
    """Return the array of which ``id`` names tasks, or None."""
    number, _, indices = id.partition(".")
    if not re.fullmatch(r"(\d{1,9}(-\d{1,9})?)?", indices):
        return None
    return cluster.state.gates.arrays.get(JobId(number))


def tasks_to_check(cluster: Cluster, id: str) -> int:
    """Return how many tasks have to be looked at to find those that ``id`` names."""
    array = array_of(cluster, id) if cluster.job(JobId(id)) is None else None
    if array is None:
        return 1
    low, _, high = id.partition(".")[2].partition("-")
    width = int(high or low) - int(low) + 1 if low else len(array.tasks)
    return max(1, min(len(array.tasks), width))


def job_named(cluster: Cluster, id: str) -> Job:
    """Return the job ``id``. Raises `RefusedError` if there is none, or if it is an array."""
    job = cluster.job(JobId(id))
    if job is None and jobs_named(cluster, id):
        message = f"job {id} is an array: name one of its tasks, such as {jobs_named(cluster, id)[0].id}"
        raise RefusedError(Refusal(RefusalKind.CONFLICT, message))
    if job is None:
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, unknown_job(cluster.state, id)))
    return job


def events_for_each(cluster: Cluster, id: str, make_event: Callable[[JobId], Event]) -> Iterator[Event | None]:
    """Yield the event ``make_event`` for each job that ``id`` names; of several, for those that can accept it.

    If none of them can, the event of the first one is yielded, and its refusal is the answer.
    """
    jobs = jobs_named(cluster, id)
    if len(jobs) <= 1:
        yield make_event(jobs[0].id if jobs else JobId(id))
        return
    granted = False
    for job in jobs:
        event = make_event(job.id)
        if cluster.refusal(event) is None:
            granted = True
            yield event
        yield PAUSE
    if not granted:
        yield make_event(jobs[0].id)


def is_changed(cluster: Cluster, id: str, changed: set[JobId], arrays: set[str]) -> bool:
    """Whether one of the jobs that ``id`` names is in ``changed``, or its array in ``arrays``."""
    if cluster.job(JobId(id)) is not None:
        return id in changed
    return id.partition(".")[0] in arrays


def resolve_id(cluster: Cluster, id: str, user: str) -> str:
    """Return the id that ``@`` and ``@~1`` stand for, as in `--after`, also for tasks, ``@.3``; other ids as they are.

    Raises `RefusedError` if the user has not submitted so many jobs.
    """
    match = re.fullmatch(r"@(?:~(\d{1,4}))?(\.\d{1,9}(?:-\d{1,9})?)?", id)
    if match is None:
        return id
    back = int(match[1] or 0)
    latest = latest_of(cluster, user, back + 1)
    if back >= len(latest):
        some = f"the oldest of yours that is known is @~{len(latest) - 1}" if latest else "you have not submitted any"
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, f"there is no job {id}: {some}"))
    return f"{latest[back]}{match[2] or ''}"


def latest_of(cluster: Cluster, user: str, most: int) -> list[JobId]:
    """Return the last jobs and arrays that ``user`` submitted, the newest first; one more than ``most`` at most."""
    found = list[JobId]()
    for job in reversed(cluster.state.jobs.values()):
        if job.user == user:
            name = job.id if job.lineage.task is None else job.lineage.task.array
            if not found or name != found[-1]:
                found.append(name)
            if len(found) > most:
                break
    return found


# --- how they are shown ---


def show(
    cluster: Cluster, id: str, now: float, *, briefly: bool = False, in_list: bool = False
) -> Parts[client_pb2.Job]:
    """Return the job ``id``, or one message for all tasks that it names.

    If ``briefly``, the sums of unfinished tasks are left out; if ``in_list``, a long command is cut.
    """
    job = cluster.job(JobId(id))
    if job is not None:
        return job_message(job, now, in_list=in_list)
    array = array_of(cluster, id)
    if array is None or not array.tasks:
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, unknown_job(cluster.state, id)))
    whole = array.id == id
    jobs = [] if whole and briefly else jobs_named(cluster, id)
    states = array.states if whole else Counter(job.state for job in jobs)
    if not whole and not jobs:
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, unknown_job(cluster.state, id)))
    message = _together(array, id, states, not in_list)
    if message.state in FINISHED_STATES or not briefly:
        yield from _add_up(message, jobs or jobs_named(cluster, id), now)
    return message


def is_over(cluster: Cluster, id: str) -> bool:
    """Whether all jobs that ``id`` names are finished."""
    array = array_of(cluster, id)
    if array is not None and array.id == id:
        return not array.unfinished
    return all(job.state.finished for job in jobs_named(cluster, id))


def _together(array: Array, id: str, states: Counter[JobState], whole_command: bool) -> client_pb2.Job:
    """Return one message for tasks of ``array``, with the number of tasks in each state."""
    state = next(state for state in MOST_LIVELY if states[state])
    first = next(iter(array.tasks.values()))
    counts = {one: states[one] for one in MOST_LIVELY if states[one]}
    own = replace(first.spec, priority=first.priority, weight=first.weight, env={})
    spec = spec_to_message(own if whole_command else replace(own, command=listed_command(own.command)))
    message = client_pb2.Job(job_id=id, spec=spec, user=array.user, state=STATES[state])
    message.reason = ", ".join(f"{count} {one.value.lower()}" for one, count in counts.items())
    message.preemptible, message.submit_time = first.preemptible, first.submitted
    message.tasks.states.update({one.value: count for one, count in counts.items()})
    message.tasks.max_concurrent, message.tasks.max_slots = array.max_concurrent, int(gpus(array.max_slots))
    return message


def _add_up(message: client_pb2.Job, jobs: list[Job], now: float) -> Parts[None]:
    """Add the sums of what the tasks ``jobs`` have and had to ``message``."""
    share, waiting_s, running_s, ended, exit_code = 0, 0.0, 0.0, 0.0, 0
    for number, job in enumerate(jobs):
        if number % JOBS_OF_A_PART == 0:
            yield
        if job.live is not None and not job.off_gpu:
            share += job.attempts[-1].allocation.share
        waiting_s += job.waiting_s(now)
        running_s += job.running_s(now)
        ended = ended if job.end is None else max(ended, job.end.at)
        exit_code = max(exit_code, job.exit_code or 0)
    message.gpus_allocated.CopyFrom(parts_to_share(share))
    message.waiting_s, message.running_s = waiting_s, running_s
    message.tasks.indices = ranges(job.lineage.task.index for job in jobs if job.lineage.task is not None)
    if message.state in FINISHED_STATES:
        message.end_time, message.exit_code = ended, exit_code
