"""Makes the facts of a node's page from the master's messages. Pure."""

from typing import Any, Final

from ebbtide_protos.v1 import client_pb2

from ebbtide_web.picture import gpu_state, optional, share_of, state_of

MOST_GPUS: Final = 64
MOST_PROCESSES: Final = 32
"""Processes of one GPU that are shown."""
MOST_JOBS: Final = 200
MOST_MARKS: Final = 100
"""Labels, taints and attempts that are set aside, each."""


def node_facts(reply: client_pb2.NodeReply) -> dict[str, Any]:
    """Return all about one node and its GPUs, with the processes on each, and the jobs there."""
    node = reply.node
    return {
        "name": node.name,
        "hostname": node.hostname,
        "state": node.state,
        "reason": node.reason,
        "version": node.version,
        "pool": node.pool,
        "moves_to": node.moves_to,
        "backend": node.gpu_backend,
        "seen": node.last_seen or None,
        "cpus": [node.cpus_allocated, node.cpus],
        "mem": [node.mem_allocated_bytes, node.mem_bytes],
        "limits": {"cpus": node.cpu_limits, "mem": node.mem_limits},
        "certificate_ends": optional(node, "certificate_ends"),
        "labels": dict(sorted(node.labels.items())[:MOST_MARKS]),
        "taints": list(node.taints[:MOST_MARKS]),
        "dead": node.dead,
        "drain": _drain(node.drain) if node.HasField("drain") else None,
        "strays": [
            {"job": stray.job_id, "attempt": stray.attempt, "kind": stray.kind, "ending": stray.ending}
            for stray in node.strays[:MOST_MARKS]
        ],
        "gpus": [_gpu(gpu) for gpu in node.gpus[:MOST_GPUS]],
        "jobs": job_fates(reply),
        "more_jobs": max(0, len(reply.jobs) - MOST_JOBS),
    }


def job_fates(reply: client_pb2.NodeReply) -> list[dict[str, Any]]:
    """Return the jobs on a node, and what becomes of each."""
    return [
        {
            "id": job.job_id,
            "name": job.name,
            "user": job.user,
            "state": state_of(job),
            "fate": job.fate,
            "text": job.text,
            "when": optional(job, "at"),
        }
        for job in reply.jobs[:MOST_JOBS]
    ]


def _drain(drain: client_pb2.NodeDrain) -> dict[str, Any]:
    return {
        "since": drain.since,
        "user": drain.user,
        "reason": drain.reason,
        "deadline": optional(drain, "deadline"),
        "force": drain.force,
    }


def _gpu(gpu: client_pb2.NodeGpu) -> dict[str, Any]:
    return {
        "uuid": gpu.info.uuid,
        "index": gpu.info.index,
        "model": gpu.info.model,
        "bus": gpu.info.pci_bus_id,
        "state": gpu_state(gpu),
        "mem": gpu.info.mem_bytes,
        "used": optional(gpu.reading, "mem_used_bytes"),
        "use": optional(gpu.reading, "utilisation"),
        "temp": optional(gpu.reading, "temperature_c"),
        "power": optional(gpu.reading, "power_w"),
        "share": share_of(gpu.share_allocated),
        "jobs": list(gpu.job_ids),
        "processes": [
            {
                "pid": process.pid,
                "user": process.user,
                "job": process.job_id,
                "command": process.command,
                "mem": optional(process, "mem_bytes"),
            }
            for process in gpu.reading.processes[:MOST_PROCESSES]
        ],
        "unhealthy": gpu.info.unhealthy_reason,
        "reserved": gpu.reserved,
    }
