"""Makes the facts of a job's page from the master's messages. Pure."""

import shlex
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_web.picture import CLASSES, FINISHED, count_words, optional, share_of, state_of

PARTS: Final = ("save", "exit", "free", "queue", "start", "import", "load", "first_step")
MOST_EVENTS: Final = 500
_SUSPEND: Final = {
    job_pb2.SUSPEND_MODE_UNSPECIFIED: "checkpoint",
    job_pb2.SUSPEND_MODE_CHECKPOINT: "checkpoint",
    job_pb2.SUSPEND_MODE_NONE: "none",
    job_pb2.SUSPEND_MODE_SWAP: "swap",
}
_SAVED: Final = {
    job_pb2.CHECKPOINTED_UNKNOWN: "unknown",
    job_pb2.CHECKPOINTED_YES: "yes",
    job_pb2.CHECKPOINTED_NO: "no",
}


def job_facts(job: client_pb2.Job, at: float) -> dict[str, Any]:
    """Return what the page of a job shows; ``at`` is the time for which its running and waiting times hold."""
    spec, state = job.spec, state_of(job)
    return {
        "id": job.job_id,
        "name": spec.name,
        "user": job.user,
        "state": state,
        "finished": state in FINISHED,
        "reason": job.reason,
        "held": job.held_by,
        "pool": job.pool,
        "moves_to": job.moves_to,
        "gpus": {
            "min": count_words(spec.gpus_min),
            "max": count_words(spec.gpus_max),
            "now": count_words(job.gpus_allocated),
        },
        "nodes": [{"node": part.node, "gpus": [gpu.uuid for gpu in part.gpus]} for part in job.allocation],
        "attempt": job.attempt,
        "preemptible": job.preemptible,
        "proved": job.proved,
        "preemptions": job.preemptions,
        "resizes": job.resizes,
        "restarts": job.restarts,
        "progress": _progress(job),
        "steps_per_s": optional(job, "steps_per_s"),
        "submitted": job.submit_time,
        "started": optional(job, "start_time"),
        "ended": optional(job, "end_time"),
        "waited": job.waiting_s,
        "ran": job.running_s,
        "at": at,
        "exit_code": optional(job, "exit_code"),
        "save_s": optional(job, "save_s"),
        "restart_cost_s": optional(job, "restart_cost_s"),
        "checkpoint": _checkpoint(job),
        "attempts": [_attempt(attempt) for attempt in job.attempts],
        "suspensions": [_suspension(found) for found in job.suspensions],
        "request": _request(job),
        "array": job.array,
        "index": job.index,
        "params": dict(job.params),
        "tasks": {"indices": job.tasks.indices, "states": dict(job.tasks.states)} if job.HasField("tasks") else None,
        "again_of": job.again_of,
        "again_as": job.again_as,
    }


def _progress(job: client_pb2.Job) -> dict[str, Any] | None:
    if not job.HasField("progress"):
        return None
    found = job.progress
    numbers = {name: value for name, value in found.metrics.items() if value == value and abs(value) != float("inf")}
    loss = optional(found, "loss")
    return {
        "step": found.step,
        "total": optional(found, "total"),
        "loss": loss if loss is not None and loss == loss and abs(loss) != float("inf") else None,
        "metrics": numbers,
        "diverged": list(found.diverged),
    }


def _checkpoint(job: client_pb2.Job) -> dict[str, Any] | None:
    if not job.HasField("checkpoint"):
        return None
    found = job.checkpoint
    return {"step": optional(found, "step"), "bytes": found.bytes, "path": found.path, "verified": found.verified}


def _attempt(attempt: client_pb2.AttemptSummary) -> dict[str, Any]:
    return {
        "number": attempt.attempt,
        "placed": attempt.placed_time,
        "started": optional(attempt, "start_time"),
        "ended": optional(attempt, "end_time"),
        "nodes": [part.node for part in attempt.allocation],
        "gpus": sum(share_of(gpu.share) for part in attempt.allocation for gpu in part.gpus),
        "outcome": attempt.outcome,
        "resumed_step": optional(attempt, "resumed_step"),
        "warm": optional(attempt, "warm"),
    }


def _suspension(found: client_pb2.Suspension) -> dict[str, Any]:
    return {
        "requested": found.requested,
        "exited": optional(found, "exited"),
        "free": optional(found, "gpu_free"),
        "placed": optional(found, "placed"),
        "resumed": optional(found, "resumed"),
        "working": optional(found, "working"),
        "saved": _SAVED[found.checkpointed],
        "bytes": optional(found, "checkpoint_bytes"),
        "reason": found.reason,
        "parts": {part: found.parts_s[part] for part in PARTS if part in found.parts_s},
        "left_step": optional(found, "left_step"),
        "kept_step": optional(found, "kept_step"),
        "working_step": optional(found, "working_step"),
        "lost": found.lost,
        "hint": found.hint,
        "note": found.note,
    }


def _request(job: client_pb2.Job) -> dict[str, Any]:
    spec = job.spec
    return {
        "command": shlex.join(spec.command),
        "workdir": spec.workdir,
        "class": CLASSES.get(spec.job_class, "be"),
        "priority": spec.priority,
        "weight": spec.weight if spec.HasField("weight") else 1.0,
        "group": spec.group,
        "suspend": _SUSPEND[spec.suspend],
        "signal": spec.signal,
        "grace_s": spec.grace_s,
        "time_limit_s": optional(spec, "time_limit_s"),
        "gpu_mem": job.gpu_mem_bytes,
        "cpus": spec.cpus,
        "mem": spec.mem_bytes,
        "retries": spec.retries,
        "nodes": spec.nodes or 1,
        "max_nodes": spec.max_nodes or 1,
        "env": sorted(spec.env),
    }


def explanation_facts(found: client_pb2.Explanation, now: float) -> dict[str, Any]:
    """Return why a job waits, and when it may start."""
    return {
        "reason": found.reason,
        "needs": found.needs,
        "ahead": optional(found, "ahead"),
        "nodes": [
            {"node": view.node, "idle": view.idle_gpus, "gpus": view.gpus, "obstacle": view.obstacle}
            for view in found.nodes[:100]
        ],
        "more_nodes": max(0, len(found.nodes) - 100),
        "room_at": optional(found, "room_at"),
        "basis": found.basis,
        "stays": [
            {
                "jobs": list(stays.job_ids),
                "many": stays.jobs,
                "reason": stays.reason,
                "until": optional(stays, "until"),
            }
            for stays in found.stays
        ],
        "forecast": _forecast(found.forecast) if found.HasField("forecast") else None,
        "what_if": _forecast(found.what_if) if found.HasField("what_if") else None,
        "at": now,
    }


def _forecast(seen: client_pb2.Forecast) -> dict[str, Any]:
    return {
        "start": optional(seen, "start_at"),
        "basis": seen.basis,
        "after": list(seen.after),
        "preempts": list(seen.preempts),
        "nodes": list(seen.nodes),
    }


def story_facts(events: Iterable[client_pb2.Event]) -> dict[str, Any]:
    """Return the last events of a job in words; checkpoints in a row are told as one."""
    told = list[dict[str, Any]]()
    for kind, run in groupby(events, lambda event: event.kind):
        several = list(run)
        if kind == "CheckpointPublished" and len(several) > 2:
            last = several[-1]
            told.append({"time": last.time, "kind": kind, "text": f"{len(several)} checkpoints, the last: {last.text}"})
        else:
            told += [{"time": event.time, "kind": kind, "text": event.text} for event in several]
    return {"events": told[-MOST_EVENTS:], "left_out": max(0, len(told) - MOST_EVENTS)}
