"""Arrays, as clients have them: submitted at once, named at once, shown in one line."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.events import Event
from ebbtide_core.job.arrays import Array, ranges, selected
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle import submission_checks
from ebbtide_core.lifecycle.forgetting import unknown_job
from ebbtide_core.measuring import gpu_memory
from ebbtide_core.model import limits
from ebbtide_core.model.spec import JobSpec, SpecError, text_size, validate
from ebbtide_core.model.types import FINISHED, WHOLE, JobId, JobState, Task, gpus
from ebbtide_protos.spec import parts_to_share, spec_to_message
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.views import STATES, job_message, listed_command
from ebbtide_master.loop import PAUSE, Parts, RefusedError

Member = tuple[JobSpec, Task | None]
"""A job to be submitted: its spec, and which task it is; the array in it is not known yet."""

LIVE = (JobState.RUNNING, JobState.STARTING, JobState.SUSPENDING, JobState.STOPPING, JobState.UNREACHABLE)
MOST_LIVELY = (*LIVE, JobState.SUSPENDED, JobState.PENDING, JobState.FAILED, JobState.CANCELLED, JobState.COMPLETED)
"""An array is in the first of these states that any of its tasks is in."""
JOBS_OF_A_PART: Final = 100
"""Are added up at a time, in less than a millisecond."""
FINISHED_STATES = [STATES[state] for state in FINISHED]


# --- which jobs ---


def named(cluster: Cluster, id: str) -> list[Job]:
    """The job of that id, or all tasks that it names (``17`` is an array, or ``17.2-5``); none if it is unknown."""
    job = cluster.job(JobId(id))
    if job is not None:
        return [job]
    array = array_of(cluster, id)
    return selected(array, id.partition(".")[2]) if array is not None else []


def array_of(cluster: Cluster, id: str) -> Array | None:
    """The array that ``id`` names tasks of."""
    number, _, indices = id.partition(".")
    if not re.fullmatch(r"(\d{1,9}(-\d{1,9})?)?", indices):
        return None
    return cluster.state.gates.arrays.get(JobId(number))


def breadth(cluster: Cluster, id: str) -> int:
    """How many tasks have to be looked at to know those that ``id`` names."""
    array = array_of(cluster, id) if cluster.job(JobId(id)) is None else None
    if array is None:
        return 1
    low, _, high = id.partition(".")[2].partition("-")
    width = int(high or low) - int(low) + 1 if low else len(array.tasks)
    return max(1, min(len(array.tasks), width))


def found(cluster: Cluster, id: str) -> Job:
    """The one job of that id; `RefusedError` if there is none, or it is an array."""
    job = cluster.job(JobId(id))
    if job is None and named(cluster, id):
        message = f"job {id} is an array: name one of its tasks, such as {named(cluster, id)[0].id}"
        raise RefusedError(Refusal(RefusalKind.CONFLICT, message))
    if job is None:
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, unknown_job(cluster.state, id)))
    return job


def wishes(cluster: Cluster, id: str, wish: Callable[[JobId], Event]) -> Iterator[Event | None]:
    """The same wish for each job that ``id`` names; of several, for those that can grant it, if any can."""
    jobs = named(cluster, id)
    if len(jobs) <= 1:
        yield wish(jobs[0].id if jobs else JobId(id))
        return
    granted = False
    for job in jobs:
        event = wish(job.id)
        if cluster.refusal(event) is None:
            granted = True
            yield event
        yield PAUSE
    if not granted:
        yield wish(jobs[0].id)


def changed_among(cluster: Cluster, id: str, changed: set[JobId], arrays: set[str]) -> bool:
    """Whether one of the jobs that ``id`` names is in ``changed``, or its array in ``arrays``."""
    if cluster.job(JobId(id)) is not None:
        return id in changed
    return id.partition(".")[0] in arrays


# --- how they are shown ---


def shown(
    cluster: Cluster, id: str, now: float, *, briefly: bool = False, in_list: bool = False
) -> Parts[client_pb2.Job]:
    """The job of that id, or one message for all tasks that it names; ``briefly``, without what they have together.

    ``in_list``, a long command is cut short.
    """
    job = cluster.job(JobId(id))
    if job is not None:
        return job_message(job, now, in_list=in_list)
    array = array_of(cluster, id)
    if array is None or not array.tasks:
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, unknown_job(cluster.state, id)))
    whole = array.id == id
    jobs = [] if whole and briefly else named(cluster, id)
    states = array.states if whole else Counter(job.state for job in jobs)
    if not whole and not jobs:
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, unknown_job(cluster.state, id)))
    message = _together(array, id, states, not in_list)
    if message.state in FINISHED_STATES or not briefly:
        yield from _add_up(message, jobs or named(cluster, id), now)
    return message


def is_over(cluster: Cluster, id: str) -> bool:
    """Whether all jobs that ``id`` names are finished."""
    array = array_of(cluster, id)
    if array is not None and array.id == id:
        return not array.unfinished
    return all(job.state.finished for job in named(cluster, id))


def _together(array: Array, id: str, states: Counter[JobState], whole_command: bool) -> client_pb2.Job:
    """In which states tasks of ``array`` are."""
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
    """What these tasks have, and had, all in all."""
    share, waiting_s, running_s, ended, exit_code = 0, 0.0, 0.0, 0.0, 0
    for number, job in enumerate(jobs):
        if number % JOBS_OF_A_PART == 0:
            yield
        if job.live is not None and not job.off_gpu:
            share += job.attempts[-1].allocation.share
        waiting_s += job.waiting_s(now)
        running_s += job.running_s(now)
        ended, exit_code = max(ended, job.ended or 0.0), max(exit_code, job.exit_code or 0)
    message.gpus_allocated.CopyFrom(parts_to_share(share))
    message.waiting_s, message.running_s = waiting_s, running_s
    message.tasks.indices = ranges(job.task.index for job in jobs if job.task is not None)
    if message.state in FINISHED_STATES:
        message.end_time, message.exit_code = ended, exit_code


# --- how they are submitted ---


def members(request: client_pb2.SubmitRequest, spec: JobSpec) -> Parts[list[Member]]:
    """The jobs that are asked for: one, or the tasks of an array. `SpecError` for what is wrong with any of them.

    They are without what they all have in their environment, which is kept once (`ebbtide_master.store.environments`).
    """
    bare = replace(spec, env={})
    submission_checks.check_caps(request.max_concurrent, request.max_slots * WHOLE)
    if not request.tasks:
        if request.max_concurrent or request.max_slots:
            option = "--max-concurrent" if request.max_concurrent else "--max-slots"
            raise SpecError(option, "is a limit for the tasks of an array: there is none without --array or --param")
        return [(bare, None)]
    size = len(request.tasks)
    if size > limits.MAX_ARRAY_TASKS:
        raise SpecError("--array", f"{size} tasks are over the limit of {limits.MAX_ARRAY_TASKS}")
    if len({task.index for task in request.tasks}) < size:
        raise SpecError("--array", "an index stands there twice")
    found, total, of_bare = list[Member](), 0, text_size(spec)
    for wanted in request.tasks:
        yield
        params = dict(wanted.params)
        task = Task(JobId(""), wanted.index, size, params, request.max_concurrent, request.max_slots * WHOLE)
        submission_checks.check_task(task)
        own = _with_params(spec, params) if params else bare
        total += text_size(own) if params else of_bare
        if total > limits.MAX_ARRAY_BYTES:
            what = f"the commands and scripts of {size} tasks come to more than"
            raise SpecError("--array", f"{what} the limit of {limits.MAX_ARRAY_BYTES} bytes in all")
        found.append((own, task))
    return found


def _with_params(spec: JobSpec, params: dict[str, str]) -> JobSpec:
    """The job with its params in the command, and in the environment, where they are all that it has of its own."""
    names = re.compile("|".join(rf"\{{{name}\}}" for name in params))
    command = tuple(names.sub(lambda match: params[match[0][1:-1]], argument) for argument in spec.command)
    own = {f"EBB_PARAM_{name.upper()}": value for name, value in params.items()}
    validate(replace(spec, command=command, env={**spec.env, **own}))
    return replace(spec, command=command, env={name: own[name] for name in own if spec.env.get(name) != own[name]})


def awaiting(cluster: Cluster, spec: JobSpec, user: str) -> JobSpec:
    """``spec`` with the ids of what it waits for.

    ``@`` is the last job, or array, that the user submitted, ``@~1`` the one before that.
    """
    matches = {one.job: re.fullmatch(r"@(?:~(\d{1,4}))?", one.job) for one in spec.after}
    back = {id: int(match[1] or 0) for id, match in matches.items() if match is not None}
    if not back:
        return spec
    latest = _latest(cluster, user, max(back.values()) + 1)
    ids = {id: latest[number] for id, number in back.items() if number < len(latest)}
    return replace(spec, after=tuple(replace(one, job=ids.get(one.job, one.job)) for one in spec.after))


def told_apart(cluster: Cluster, id: str, user: str) -> str:
    """The id that is meant by ``@`` and ``@~1``, as in `awaiting`; also of tasks, ``@.3``. Others stay as they are.

    `RefusedError` if the user has not submitted so many.
    """
    match = re.fullmatch(r"@(?:~(\d{1,4}))?(\.\d{1,9}(?:-\d{1,9})?)?", id)
    if match is None:
        return id
    back = int(match[1] or 0)
    latest = _latest(cluster, user, back + 1)
    if back >= len(latest):
        some = f"the oldest of yours that is known is @~{len(latest) - 1}" if latest else "you have not submitted any"
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, f"there is no job {id}: {some}"))
    return f"{latest[back]}{match[2] or ''}"


def _latest(cluster: Cluster, user: str, most: int) -> list[JobId]:
    """The last jobs and arrays that the user submitted, the newest first."""
    found = list[JobId]()
    for job in reversed(cluster.state.jobs.values()):
        if job.user == user:
            name = job.id if job.task is None else job.task.array
            if not found or name != found[-1]:
                found.append(name)
            if len(found) > most:
                break
    return found


def submitted(
    cluster: Cluster,
    id: JobId,
    jobs: Iterable[Member],
    user: str,
    hold: bool,
    operation: tuple[str, str] = ("", ""),
    again: Sequence[Job] = (),
) -> Iterator[Event | None]:
    """The facts of a submit: all of its jobs, or none. ``operation`` is its id, and a digest of the request.

    With ``again``, of which job each is a repetition. What a master that ended meanwhile had accepted of an array
    already is left as it is.
    """
    for number, (spec, task) in enumerate(jobs):
        if number:
            yield PAUSE
        if task is not None and JobId(f"{id}.{task.index}") in cluster.state.jobs:
            continue
        own = id
        if task is not None:
            own, task = JobId(f"{id}.{task.index}"), replace(task, array=id)
        old = again[number].id if again else None
        operation_id, digest = ("", "") if number else operation
        yield e.JobSubmitted(own, spec, user, hold, operation_id, task, old, digest)
        if (needs := gpu_memory.learned(cluster.state, cluster.state.jobs[own])) is not None:
            yield needs
        if old is not None:
            yield e.JobRequeued(old, own)


def is_whole(cluster: Cluster, id: JobId) -> bool:
    """Whether all tasks of the array were accepted; of those of which a master that was killed had only begun, not."""
    array = cluster.state.gates.arrays.get(id)
    if array is None:
        return True
    if not array.tasks:  # all of them were removed since
        return True
    task = next(iter(array.tasks.values())).task
    return task is None or len(array.tasks) >= task.size
