"""Format arrays as words and as facts: one line stands for many jobs."""

from collections.abc import Iterable
from typing import Any

from ebbtide_protos.v1 import client_pb2, job_pb2

AFTER_KINDS = {
    job_pb2.AFTER_KIND_UNSPECIFIED: "any",
    job_pb2.AFTER_KIND_ANY: "any",
    job_pb2.AFTER_KIND_OK: "ok",
    job_pb2.AFTER_KIND_NOT_OK: "not-ok",
}
_ORDER = ("RUNNING", "STARTING", "SUSPENDING", "STOPPING", "UNREACHABLE", "SUSPENDED", "PENDING", "COMPLETED")
_WORDS = {"PENDING": "waiting", "COMPLETED": "done"}


def counts_words(tasks: client_pb2.TaskCounts) -> str:
    """Format the number of tasks in each state, as in ``3 running 2 waiting 5 done``."""
    order = sorted(tasks.states, key=lambda state: (_ORDER.index(state) if state in _ORDER else len(_ORDER), state))
    return " ".join(f"{tasks.states[state]} {_WORDS.get(state, state.lower())}" for state in order)


def indices_words(tasks: client_pb2.TaskCounts) -> str:
    """Format an array's indices and its limit of concurrent tasks, as in ``[0-9%2]``."""
    return f"[{tasks.indices}{f'%{tasks.max_concurrent}' if tasks.max_concurrent else ''}]"


def after_words(dependencies: Iterable[job_pb2.Dependency]) -> str:
    """Format a job's dependencies, as in ``ok:12, any:14``."""
    return ", ".join(f"{AFTER_KINDS[one.kind]}:{one.job_id}" for one in dependencies)


def gate_facts(job: client_pb2.Job) -> dict[str, Any]:
    """Return the facts on what a job waits for before it starts, and on the array that it is a task of."""
    counts = job.tasks if job.HasField("tasks") else None
    return {
        "array": job.array or None,
        "index": job.index if job.array else None,
        "params": dict(job.params),
        "tasks": None if counts is None else _count_facts(counts),
        "after": [{"id": one.job_id, "kind": AFTER_KINDS[one.kind]} for one in job.spec.after],
        "begin_time": job.spec.begin_at or None,
        "again_of": job.again_of or None,
        "again_as": job.again_as or None,
    }


def _count_facts(counts: client_pb2.TaskCounts) -> dict[str, Any]:
    return {
        "indices": counts.indices,
        "states": dict(counts.states),
        "max_concurrent": counts.max_concurrent or None,
        "max_slots": counts.max_slots or None,
    }
