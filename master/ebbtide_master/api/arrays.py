"""Shows an array as a whole: the state, a param and a metric of each task, and some tasks in more detail."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle.forgetting import unknown_job
from ebbtide_core.model.limits import MAX_METRIC_NAME
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import JobId
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.named_jobs import array_of, jobs_named
from ebbtide_master.api.request_checks import check_words
from ebbtide_master.api.views import STATES, reason_of
from ebbtide_master.loop import Parts, RefusedError

MOST_ROWS: Final = 200
"""Tasks in detail of one reply."""
MOST_NAMES: Final = 100
"""Params, and metrics, that a reply names."""
MAX_PARAM_NAME: Final = 256
TASKS_OF_A_PART: Final = 200
"""Tasks that are looked at without a break, in less than a millisecond."""
LOSS: Final = "loss"


class ArrayService:
    """Shows arrays."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop

    async def ShowArray(self, request: client_pb2.ShowArrayRequest, context: Any) -> client_pb2.ShowArrayReply:
        """Show all tasks of an array briefly, and some of them in more detail."""
        if request.limit > MOST_ROWS:
            raise SpecError("limit", f"{request.limit} tasks are over the limit of {MOST_ROWS}")
        check_words("param", request.param, MAX_PARAM_NAME)
        check_words("metric", request.metric, MAX_METRIC_NAME)
        return await self._loop.ask_in_parts(lambda cluster: _shown(cluster, request))


def _shown(cluster: Cluster, request: client_pb2.ShowArrayRequest) -> Parts[client_pb2.ShowArrayReply]:
    if cluster.job(JobId(request.job_id)) is not None:
        raise RefusedError(Refusal(RefusalKind.CONFLICT, f"job {request.job_id} is not an array"))
    array, tasks = array_of(cluster, request.job_id), jobs_named(cluster, request.job_id)
    if array is None or not tasks:
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, unknown_job(cluster.state, request.job_id)))
    first = tasks[0]
    reply = client_pb2.ShowArrayReply(job_id=array.id, user=array.user, name=first.spec.name)
    params, metrics = yield from _names(tasks)
    asha = first.spec.asha
    reply.params.extend(params)
    reply.metrics.extend(metrics)
    reply.param = request.param if request.param in params else (yield from _told_apart_by(tasks, params))
    best = asha.metric if asha is not None else LOSS
    reply.metric = request.metric if request.metric in metrics else best if best in metrics else next(iter(metrics), "")
    reply.less_is_better = asha is None or asha.mode.value == "min"
    yield from _columns(reply, tasks)
    if asha is not None:
        reached = [job.measured.rungs for job in tasks]
        reply.rungs.extend(
            client_pb2.RungCount(steps=steps, tasks=sum(steps in rungs for rungs in reached)) for steps in asha.rungs()
        )
    start = request.first
    for job in tasks[start : start + (request.limit or MOST_ROWS)]:
        reply.rows.append(_row(job, reply.metric))
    return reply


def _names(tasks: Sequence[Job]) -> Parts[tuple[list[str], list[str]]]:
    """Return the names of all params, and of all metrics that a task has reported."""
    params, metrics = dict[str, None](), dict[str, None]()
    for number, job in enumerate(tasks):
        if not number % TASKS_OF_A_PART:
            yield
        params.update(dict.fromkeys(job.lineage.task.params if job.lineage.task is not None else ()))
        metrics.update(dict.fromkeys(name for name, _ in _values(job)))
    return sorted(params)[:MOST_NAMES], list(metrics)[:MOST_NAMES]


def _told_apart_by(tasks: Sequence[Job], params: Sequence[str]) -> Parts[str]:
    """Return the first param that has several numbers; the first one of all if none has, and nothing without any."""
    found = dict[str, float]()
    for number, job in enumerate(tasks):
        if not number % TASKS_OF_A_PART:
            yield
        for name, text in job.lineage.task.params.items() if job.lineage.task is not None else ():
            value = _number(text)
            if not math.isnan(value) and found.setdefault(name, value) != value and name in params:
                return name
    return next(iter(params), "")


def _columns(reply: client_pb2.ShowArrayReply, tasks: Sequence[Job]) -> Parts[None]:
    """Add the index, the state, the param and the metric of each task."""
    states = bytearray()
    for number, job in enumerate(tasks):
        if not number % TASKS_OF_A_PART:
            yield
        task = job.lineage.task
        assert task is not None
        reply.indices.append(task.index)
        states.append(STATES[job.state])
        reply.x.append(_number(task.params.get(reply.param, "")))
        reply.y.append(dict(_values(job)).get(reply.metric, math.nan))
    reply.states = bytes(states)


def _values(job: Job) -> Iterator[tuple[str, float]]:
    """Yield what the job has reported, by name; the loss is one of these."""
    progress = job.measured.progress
    if progress is None:
        return
    if progress.loss is not None:
        yield LOSS, progress.loss
    yield from progress.metrics.items()


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return math.nan
    return found if math.isfinite(found) else math.nan


def _row(job: Job, metric: str) -> client_pb2.ArrayTaskRow:
    task, progress = job.lineage.task, job.measured.progress
    assert task is not None
    return client_pb2.ArrayTaskRow(
        index=task.index,
        state=STATES[job.state],
        reason=reason_of(job),
        params=task.params,
        step=None if progress is None else progress.step,
        total=None if progress is None else progress.total,
        value=dict(_values(job)).get(metric),
        rungs=len(job.measured.rungs),
        preemptions=job.suspending.preemptions,
    )
