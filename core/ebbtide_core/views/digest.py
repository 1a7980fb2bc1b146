"""Computes a fingerprint of the cluster's state, equal for a cluster that ran and for the fold of its journal."""

import dataclasses
import hashlib
import json
from operator import attrgetter
from typing import Final

from ebbtide_core.events.codec import Json, encode
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.node_usage import NodeUse
from ebbtide_core.state import ClusterState

OF_A_JOB: Final = (
    "id", "spec", "user", "submitted", "sequence", "gpus_min", "gpus_max", "priority", "weight", "state", "held_by",
    "attempts", "planned", "suspensions", "ending", "ended", "exit_code", "measured.progress", "saved.checkpoint",
    "saved.root_id", "suspending.preemptions", "suspending.resizes", "retries.restarts", "retries.failures",
    "times.ran_s", "times.work_s", "suspending.restart_cost_s",
)  # fmt: skip
"""All facts of a job, except for the text of its reason, which a pass may change without an event."""


def digest(state: ClusterState) -> str:
    """Return the SHA-256 of all jobs and of what is held and promised on every node, in hexadecimal."""
    whole = hashlib.sha256()
    for job in state.jobs.values():
        whole.update(_bytes(_job(job)))
    for id in sorted(state.nodes):
        whole.update(_bytes(_node(state.nodes[id])))
    return whole.hexdigest()


def _bytes(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _job(job: Job) -> Json:
    return [
        [_attempt(attempt) for attempt in job.attempts] if name == "attempts" else encode(attrgetter(name)(job))
        for name in OF_A_JOB
    ]


def _attempt(attempt: Attempt) -> Json:
    """Leave out the attempt's measured speed, because the journal does not have it."""
    names = (field.name for field in dataclasses.fields(attempt) if field.init and field.name != "meter")
    return [encode(getattr(attempt, name)) for name in names]


def _node(node: Node) -> Json:
    return [node.id, _use(node.held), _use(node.promised), sorted(node.attempts), sorted(node.planned)]


def _use(use: NodeUse) -> Json:
    return [sorted(use.whole), use.shares, use.gpu_mem, use.cpus, use.mem_bytes]
