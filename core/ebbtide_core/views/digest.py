"""Computes a fingerprint of the cluster's state, equal for a cluster that ran and for the fold of its journal."""

import hashlib
import json

from ebbtide_core.events.codec import Json, encode
from ebbtide_core.job.facets import Gang, Swap
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.node_usage import NodeUse
from ebbtide_core.state import ClusterState


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


def facts(job: Job) -> dict[str, object]:
    """Return all facts of a job, by name, except for the text of its reason, which a pass may change without an event.

    The digest depends on their order, which is that of the first version.
    """
    end, times, retries, suspending = job.end, job.times, job.retries, job.suspending
    return {
        "id": job.id,
        "spec": job.spec,
        "user": job.user,
        "submitted": job.submitted,
        "sequence": job.sequence,
        "gpus_min": job.gpus_min,
        "gpus_max": job.gpus_max,
        "priority": job.priority,
        "weight": job.weight,
        "state": job.state,
        "held_by": job.held_by,
        "attempts": job.attempts,
        "planned": job.planned,
        "suspensions": job.suspensions,
        "ending": end.state if end is not None else None,
        "ended": end.at if end is not None else None,
        "exit_code": job.exit_code,
        "progress": job.measured.progress,
        "checkpoint": job.saved.checkpoint,
        "checkpoint_root_id": job.saved.root_id,
        "preemptions": suspending.preemptions,
        "resizes": suspending.resizes,
        "restarts": retries.restarts,
        "failures": retries.failures,
        "ran_s": times.ran_s,
        "work_s": times.work_s,
        "restart_cost_s": suspending.restart_cost_s,
    }


def _job(job: Job) -> Json:
    known = facts(job) | {"attempts": [_attempt(attempt) for attempt in job.attempts]}
    return [encode(value) for value in known.values()]


def _attempt(attempt: Attempt) -> Json:
    """Encode all facts of an attempt, except for its measured speed, because the journal does not have it."""
    swap, gang, idle, end = attempt.swap or Swap(None), attempt.gang or Gang({}), attempt.idle, attempt.end
    known = (
        attempt.number,
        attempt.allocation,
        attempt.placed,
        attempt.reserved_s,
        attempt.sticky,
        attempt.started,
        attempt.pid,
        attempt.resumed_step,
        attempt.stop,
        end.at if end is not None else None,
        end.exit if end is not None else None,
        attempt.freed,
        end.outcome if end is not None else "",
        attempt.published,
        swap.kept,
        swap.count,
        swap.out_since,
        swap.out_bytes,
        swap.returning_since,
        attempt.off_gpu,
        attempt.first_started,
        gang.members,
        attempt.start,
        gang.broken_by,
        gang.port,
        attempt.sharing,
        attempt.overran,
        idle.since if idle is not None else None,
        idle.suspend_at if idle is not None else None,
        attempt.unused_since,
        attempt.edited,
        attempt.speedup,
        attempt.matches,
        attempt.leased,
        attempt.orphaned,
    )
    return [encode(value) for value in known]


def _node(node: Node) -> Json:
    return [node.id, _use(node.held), _use(node.promised), sorted(node.attempts), sorted(node.planned)]


def _use(use: NodeUse) -> Json:
    return [sorted(use.whole), use.shares, use.gpu_mem, use.cpus, use.mem_bytes]
