"""Describe what nodes are and what jobs require of them, for ``--json``."""

import shlex
from typing import Any

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.values import format_size

Facts = dict[str, Any]


def needs_facts(needs: job_pb2.Needs) -> Facts:
    """Return what a job requires of its nodes and GPUs; empty lists and nulls where it requires nothing."""
    return {
        "select": {wanted.key: list(wanted.values) for wanted in needs.select},
        "tolerate": list(needs.tolerate),
        "on": list(needs.on),
        "exclude": list(needs.exclude),
        "gpu_types": list(needs.gpu_types),
        "compute_capability": needs.compute_capability or None,
        "gpu_total_mem_bytes": needs.gpu_total_mem_bytes or None,
        "mixed_gpus": needs.mixed_gpus,
        "require_paths": list(needs.require_paths),
    }


def needs_words(needs: job_pb2.Needs) -> str:
    """Return the requirements as the options that were given; empty if none was."""
    several = (
        ("--select", [f"{wanted.key}={'|'.join(wanted.values)}" for wanted in needs.select]),
        ("--tolerate", needs.tolerate),
        ("--on", needs.on),
        ("--exclude", needs.exclude),
        ("--gpu-type", needs.gpu_types),
        ("--compute-capability", [needs.compute_capability] if needs.compute_capability else []),
        ("--gpu-total-mem", [format_size(needs.gpu_total_mem_bytes)] if needs.gpu_total_mem_bytes else []),
        ("--require-path", needs.require_paths),
    )
    words = [f"{option} {shlex.quote(value)}" for option, values in several for value in values]
    return " ".join([*words, *(["--mixed-gpus"] if needs.mixed_gpus else [])])


def drain_facts(node: client_pb2.Node) -> Facts | None:
    """Return how a node was taken out of service; None if it was not."""
    if not node.HasField("drain"):
        return None
    drain = node.drain
    return {
        "since": drain.since,
        "user": drain.user or None,
        "reason": drain.reason or None,
        "deadline": drain.deadline if drain.HasField("deadline") else None,
        "force": drain.force,
    }


def loan_facts(node: client_pb2.Node) -> Facts | None:
    """Return when a node is gone, and who lends it; None if it stays."""
    if not node.HasField("loan"):
        return None
    return {"until": node.loan.until, "owner": node.loan.owner or None}


def prospect_facts(job: client_pb2.NodeJob) -> Facts:
    """Return what becomes of a job on a node that is drained."""
    return {
        "id": job.job_id,
        "name": job.name,
        "user": job.user,
        "state": job_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_"),
        "fate": job.fate,
        "at": job.at if job.HasField("at") else None,
    }
