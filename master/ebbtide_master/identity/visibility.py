"""Hides from a user what other users' jobs run, but not their user, their size, and since when and why they wait.

Only the fields that are named here are shown, so a field that is added later is hidden until it is named.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from ebbtide_core.events.codec import decode_event
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import StopCause
from ebbtide_core.views.narrate import narrate
from ebbtide_protos.v1 import client_pb2, job_pb2

OwnerOf = Callable[[str], str | None]
"""Returns the user of the job or array with an id; None if the id is unknown."""

_JOB: Final = frozenset({
    "job_id", "spec", "user", "state", "reason", "held_by", "preemptible", "gpus_allocated", "allocation", "attempt",
    "preemptions", "resizes", "restarts", "progress", "submit_time", "start_time", "end_time", "waiting_s", "running_s",
    "proved", "save_s", "restart_cost_s", "gpu_mem_bytes", "idle_since", "idle_until", "pool", "moves_to", "array",
    "index", "tasks", "again_of", "again_as", "effect",
})  # fmt: skip
_SPEC: Final = frozenset({
    "name", "gpus_min", "gpus_max", "gpu_mem_bytes", "cpus", "mem_bytes", "job_class", "priority", "grace_s",
    "time_limit_s", "suspend", "launch", "time_auto", "weight", "group", "nodes", "max_nodes", "pool", "needs", "after",
    "begin_at", "kind", "idle_limit_s", "idle_ok", "move_checkpoints", "retries", "failover_after_s",
})  # fmt: skip
_PROGRESS: Final = frozenset({"step", "total"})
_ARRAY: Final = frozenset({"job_id", "user", "name", "indices", "states", "rungs", "rows"})
_ROW: Final = frozenset({"index", "state", "step", "total", "rungs", "preemptions"})
_EXPLANATION: Final = frozenset({
    "job_id", "state", "reason", "held_by", "attempt", "needs", "ahead", "nodes", "room_at", "basis", "remaining_s",
    "remaining_from", "forecast", "what_if", "pool", "stays", "no_effect", "supplies",
})  # fmt: skip
_NODE_VIEW: Final = frozenset({"node", "idle_gpus", "gpus", "obstacle"})
_STAYS: Final = frozenset({"reason", "until", "job_ids", "jobs"})
_FORECAST: Final = frozenset({"start_at", "basis", "after", "preempts", "nodes"})
_NEEDS: Final = frozenset({
    "select", "tolerate", "on", "exclude", "gpu_types", "compute_capability", "gpu_total_mem_bytes", "mixed_gpus",
})  # fmt: skip

_SPEC_OF_EVENT: Final = frozenset({
    "name", "gpus_min", "gpus_max", "gpu_mem_bytes", "cpus", "mem_bytes", "job_class", "priority", "grace_s",
    "time_limit_s", "suspend", "launch", "retries", "exit_zero", "weight", "group", "max_nodes", "nodes", "work_s",
    "time_auto", "warm", "spread", "move_checkpoints", "idle_ok", "pool", "after", "begin_at", "kind", "idle_limit_s",
    "failover_after_s",
})  # fmt: skip
NOT_SHOWN: Final = "-"
"""Replaces the command and the directory of another user's job."""
WORDS_NOT_SHOWN: Final = "(not shown)"

_EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "AttemptExited": (
        "exit.mps_failure", "exit.swap_failure", "progress.loss", "progress.metrics", "progress.diverged",
    ),
    "AttemptRefused": ("reason",),
    "AttemptStarted": ("edited",),
    "AttemptSwapped": ("note",),
    "CheckpointPublished": ("checkpoint.path",),
    "GpusExcluded": ("reason",),
    "JobHeld": ("reason",),
    "LogMatched": ("match.pattern", "match.line"),
    "NodeExcluded": ("reason",),
    "RungReached": ("value",),
    "TaskPromoted": ("reason",),
    "TaskStopped": ("reason",),
    "WorkUnsaved": ("lost", "hint"),
    **dict.fromkeys(
        (
            "ArrayChanged", "AttemptFreed", "AttemptOrphaned", "AttemptPlaced", "CancelRequested", "ClaimDropped",
            "DependencyFailed",
            "DrillRequested", "FirstStepMade", "GpuMemoryChanged", "HoldRequested", "InterferenceFound", "JobBusy",
            "JobChanged", "JobIdle", "JobMoved", "JobRemoved", "JobRequeued", "JobRetired", "MemoryOverran",
            "RateMeasured", "ReleaseRequested", "RequeueRequested", "ResizeRequested", "ResumeRequested",
            "ReturnRequested", "RoomClaimed", "SessionUnused", "StopRequested", "StrayEndRequested", "StrayFound",
            "StrayGone", "SuspendRequested", "WorkResumed",
        ),
        (),
    ),
}  # fmt: skip
"""Fields that are blanked in the events of other users' jobs, by kind; of other kinds nothing is shown."""

_STOPS_IN_OWN_WORDS: Final = frozenset({StopCause.BROKEN, StopCause.SUSPENDED})
"""Causes of a `StopRequested` whose reason quotes why a node refused the job, or what a task had reported."""
_ABOUT_SCRIPTS: Final = frozenset({"RateForgotten", "RunForgotten"})
_TELLING: Final = re.compile(r"""['"]|(?<!\w)~?/\w""")
"""Matches a reason that quotes a job, or names a path of it."""
_AFTER_AN_END: Final = frozenset({
    job_pb2.JOB_STATE_PENDING, job_pb2.JOB_STATE_COMPLETED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED,
})  # fmt: skip
NOT_FORESEEN: Final = "not known"
"""Replaces what only the user may read about a start that nothing foresees."""


def redact(reply: Any, user: str, owner_of: OwnerOf) -> Any:
    """Return ``reply`` after removing from it what ``user`` may not see."""
    hide = HIDERS.get(type(reply))
    if hide is not None:
        hide(reply, user, owner_of)
    return reply


def _hide_job(job: client_pb2.Job, user: str, owner_of: OwnerOf) -> None:
    if job.user == user:
        return
    own_reason = job.own_reason
    _keep(job, _JOB)
    _keep(job.spec, _SPEC)
    if job.spec.HasField("needs"):
        _keep(job.spec.needs, _NEEDS)
    if job.HasField("progress"):
        _keep(job.progress, _PROGRESS)
    job.reason = "" if is_own(job.held_by, job.attempt, job.state, own_reason) else public_words(job.reason)


def has_own_reason(job: Job) -> bool:
    """Return whether the reason of ``job`` is that of a stop, in words that quote a node or what the job reported.

    A job that is no task of an array is suspended only in words that everybody may read.
    """
    order = job.attempts[-1].stop if job.attempts else None
    if order is None or order.cause not in _STOPS_IN_OWN_WORDS or job.reason != order.reason:
        return False
    return order.cause is not StopCause.SUSPENDED or job.lineage.task is not None


def is_own(held_by: str, attempt: int, state: int, own_reason: bool) -> bool:
    """Return whether only its user may read why a job is as it is, and whatever quotes that."""
    return own_reason or held_by == "system" or (attempt > 0 and state in _AFTER_AN_END)


def public_words(words: str) -> str:
    """Return ``words``, or nothing if they quote a job, or name a path of it."""
    return "" if _TELLING.search(words) else words


def _hide_jobs(reply: client_pb2.ListJobsReply, user: str, owner_of: OwnerOf) -> None:
    for job in reply.jobs:
        _hide_job(job, user, owner_of)


def _hide_array(reply: client_pb2.ShowArrayReply, user: str, owner_of: OwnerOf) -> None:
    if reply.user == user:
        return
    _keep(reply, _ARRAY)
    for row in reply.rows:
        _keep(row, _ROW)


def _hide_explanation(reply: client_pb2.Explanation, user: str, owner_of: OwnerOf) -> None:
    if owner_of(reply.job_id) == user:
        return
    own = is_own(reply.held_by, reply.attempt, job_pb2.JobState.Value(f"JOB_STATE_{reply.state}"), reply.own_reason)
    _keep(reply, _EXPLANATION)
    reply.reason = "" if own else public_words(reply.reason)
    reply.needs, reply.basis = public_words(reply.needs), public_words(reply.basis)
    reply.no_effect = public_words(reply.no_effect)
    for node in reply.nodes:
        _keep(node, _NODE_VIEW)
        if _TELLING.search(node.obstacle):
            node.obstacle = "not one that it can use"
    for stays in reply.stays:
        _keep(stays, _STAYS)
        stays.reason = public_words(stays.reason)
    for name in ("forecast", "what_if"):
        if reply.HasField(name):
            _hide_forecast(getattr(reply, name), own)


def _hide_forecast(forecast: client_pb2.Forecast, own: bool) -> None:
    """Hide how a start is not known if that quotes the job, or may quote its reason, which is its ``own``."""
    _keep(forecast, _FORECAST)
    if (own and not forecast.HasField("start_at")) or _TELLING.search(forecast.basis):
        forecast.basis = NOT_FORESEEN


def _hide_events(reply: client_pb2.StoryReply | client_pb2.QueryEventsReply, user: str, owner_of: OwnerOf) -> None:
    for event in reply.events:
        _hide_event(event, user, owner_of)


def _hide_event(event: client_pb2.Event, user: str, owner_of: OwnerOf) -> None:
    if event.kind in _ABOUT_SCRIPTS:
        _hide_script(event, user)
    if not event.job_id or owner_of(event.job_id) == user:
        return
    body = _body(event.kind, json.loads(event.json))
    event.json = "" if body is None else json.dumps(body)
    event.text = "" if body is None else narrate(decode_event(event.kind, body))


def _hide_script(event: client_pb2.Event, user: str) -> None:
    """Hide the script of a forgotten job from all but its user."""
    body = json.loads(event.json)
    if body["user"] != user:
        event.json = json.dumps({**body, "script": WORDS_NOT_SHOWN})


def _body(kind: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return what is shown of an event of another user's job, or None if nothing is."""
    if kind == "JobSubmitted":
        spec = {key: value for key, value in body["spec"].items() if key in _SPEC_OF_EVENT}
        task = None if body.get("task") is None else {**body["task"], "params": {}}
        hidden = {"command": [NOT_SHOWN], "workdir": NOT_SHOWN}
        return {**body, "spec": spec | hidden, "operation_id": "", "task": task}
    if kind not in _EVENTS:
        return None
    for path in _EVENTS[kind]:
        *outer, last = path.split(".")
        inner: Any = body
        for key in outer:
            inner = inner[key] or {}
        if last in inner:
            inner[last] = _blank(inner[last])
    if kind == "StopRequested" and StopCause(body["cause"]) in _STOPS_IN_OWN_WORDS:
        body["reason"] = WORDS_NOT_SHOWN
    if "waited" in body:
        body["waited"] = ""  # because it is the reason that the job had, and nothing says whose words that is
    return body


def _blank(value: Any) -> Any:
    if isinstance(value, str):
        return WORDS_NOT_SHOWN if value else ""
    return type(value)() if isinstance(value, list | dict) else None


def _keep(message: Any, names: frozenset[str]) -> None:
    """Clear all fields of ``message`` except ``names``."""
    for field, _ in message.ListFields():
        if field.name not in names:
            message.ClearField(field.name)


HIDERS: Final[Mapping[type, Callable[[Any, str, OwnerOf], None]]] = {
    client_pb2.Job: _hide_job,
    client_pb2.ListJobsReply: _hide_jobs,
    client_pb2.ShowArrayReply: _hide_array,
    client_pb2.Explanation: _hide_explanation,
    client_pb2.StoryReply: _hide_events,
    client_pb2.QueryEventsReply: _hide_events,
    client_pb2.Event: _hide_event,
}
"""The functions that hide, by type of reply; other replies do not show what a job runs."""
