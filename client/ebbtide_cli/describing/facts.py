"""The facts of jobs, nodes and events as ``--json`` prints them, and those that are said in words.

Ids are strings, times Unix seconds or null, fractions of a GPU numbers.
"""

import json
import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2

from ebbtide_cli.values import format_size

if TYPE_CHECKING:
    from fractions import Fraction

Facts = dict[str, Any]


def _words(enum: Any, prefix: str, unset: str = "") -> dict[int, str]:
    """Return the words for the values of an enum of the wire; ``unset`` is for the value that stands for a default."""
    words = {number: name.removeprefix(prefix).lower().replace("_", " ") for name, number in enum.items()}
    return {number: unset if word == "unspecified" else word for number, word in words.items()}


CLASSES = {
    job_pb2.JOB_CLASS_UNSPECIFIED: "be",
    job_pb2.JOB_CLASS_BEST_EFFORT: "be",
    job_pb2.JOB_CLASS_TRIAL_AND_ERROR: "te",
}
SUSPEND_MODES = _words(job_pb2.SuspendMode, "SUSPEND_MODE_", "checkpoint")
LAUNCH_MODES = _words(job_pb2.LaunchMode, "LAUNCH_MODE_", "single")
KINDS = _words(job_pb2.JobKind, "JOB_KIND_", "batch")
# The parts of a suspension, in their order. The core defines these words, but is slow to load for them alone.
PARTS = ("save", "exit", "free", "queue", "start", "import", "load", "first_step")
SIGNAL_TARGETS = _words(job_pb2.SignalTarget, "SIGNAL_TARGET_", "auto")
EXIT_ZEROS = _words(job_pb2.ExitZero, "EXIT_ZERO_", "suspended")
CHECKPOINTED = _words(job_pb2.Checkpointed, "CHECKPOINTED_")
LINKS = _words(agent_pb2.GpuLink, "GPU_LINK_")
AFTER_KINDS = {
    job_pb2.AFTER_KIND_UNSPECIFIED: "any",
    job_pb2.AFTER_KIND_ANY: "any",
    job_pb2.AFTER_KIND_OK: "ok",
    job_pb2.AFTER_KIND_NOT_OK: "not-ok",
}
_ORDER = ("RUNNING", "STARTING", "SUSPENDING", "STOPPING", "UNREACHABLE", "SUSPENDED", "PENDING", "COMPLETED")
_WORDS = {"PENDING": "waiting", "COMPLETED": "done"}
LOG_ACTIONS: Final = {
    job_pb2.LOG_ACTION_IGNORE: "ignore",
    job_pb2.LOG_ACTION_NOTIFY: "notify",
    job_pb2.LOG_ACTION_NO_RETRY: "no-retry",
    job_pb2.LOG_ACTION_EXCLUDE_GPU: "exclude-gpu",
    job_pb2.LOG_ACTION_EXCLUDE_NODE: "exclude-node",
}
FINISHED = (job_pb2.JOB_STATE_COMPLETED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED)


def state_of(job: client_pb2.Job) -> str:
    """Return the job's state in the user's words, e.g. ``RUNNING``."""
    return job_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")


def share_of(share: job_pb2.Share) -> "int | Fraction":
    """Convert a share on the wire into a number; 0 if it is not set."""
    if share.denominator < 2:
        return share.numerator if share.denominator else 0
    from fractions import Fraction  # most jobs have whole GPUs

    return Fraction(share.numerator, share.denominator)


def job_facts(job: client_pb2.Job) -> Facts:
    """Return all facts on one job."""
    return {
        "id": job.job_id,
        "user": job.user,
        "state": state_of(job),
        "reason": job.reason,
        "held_by": job.held_by or None,
        "preemptible": job.preemptible,
        "proved": job.proved if job.preemptible else None,
        "save_s": _optional(job, "save_s"),
        "restart_cost_s": _optional(job, "restart_cost_s"),
        "pool": job.pool or "default",
        "moves_to": job.moves_to or None,
        **_spec_facts(job.spec),
        "gpu_mem_bytes": job.gpu_mem_bytes or job.spec.gpu_mem_bytes,
        "gpu_mem_from": job.gpu_mem_from or None,
        "gpus": {
            "min": _number(job.spec.gpus_min),
            "max": _number(job.spec.gpus_max),
            "allocated": _number(job.gpus_allocated),
        },
        "nodes": [node.node for node in job.allocation],
        "excluded_nodes": dict(job.excluded_nodes),
        "gpu_uuids": _gpu_uuids(job.allocation),
        "allocation": [_allocation_facts(node) for node in job.allocation],
        "attempt": job.attempt,
        "pid": job.pid or None,
        "preemptions": job.preemptions,
        "resizes": job.resizes,
        "restarts": job.restarts,
        "progress": _progress_facts(job),
        "steps_per_s": _optional(job, "steps_per_s"),
        "rates": [_rate_facts(rate) for rate in job.rates],
        "rungs": [{"steps": rung.steps, "value": _optional(rung, "value")} for rung in job.rungs],
        "idle_since": _optional(job, "idle_since"),
        "idle_until": _optional(job, "idle_until"),
        "submit_time": _time(job.submit_time),
        "start_time": _optional(job, "start_time"),
        "end_time": _optional(job, "end_time"),
        "waiting_s": job.waiting_s,
        "running_s": job.running_s,
        "exit_code": _optional(job, "exit_code"),
        "checkpoint": _checkpoint_facts(job.checkpoint) if job.HasField("checkpoint") else None,
        "suspensions": [_suspension_facts(suspension) for suspension in job.suspensions],
        "attempts": [_attempt_facts(attempt) for attempt in job.attempts],
        **gate_facts(job),
    }


def node_facts(node: client_pb2.Node) -> Facts:
    """Return all facts on one node."""
    return {
        "name": node.name,
        "hostname": node.hostname,
        "pool": node.pool or "default",
        "moves_to": node.moves_to or None,
        "state": node.state,
        "reason": node.reason,
        "gpu_backend": node.gpu_backend,
        "cpus": node.cpus,
        "cpus_allocated": node.cpus_allocated,
        "mem_bytes": node.mem_bytes,
        "mem_allocated_bytes": node.mem_allocated_bytes,
        "checkpoint_root_id": node.checkpoint_root_id,
        "last_seen": _time(node.last_seen),
        "version": node.version,
        "cgroup": _optional(node, "cgroup"),
        "cpu_limits": node.cpu_limits or None,
        "mem_limits": node.mem_limits or None,
        "labels": dict(node.labels),
        "taints": list(node.taints),
        "drain": drain_facts(node),
        "loan": loan_facts(node),
        "certificate_ends": _optional(node, "certificate_ends"),
        "dead": node.dead or None,
        "strays": [stray_facts(stray) for stray in node.strays],
        "nvlinks": nvlinks(node),
        "gpus": [_gpu_facts(gpu) for gpu in node.gpus],
    }


def stray_facts(stray: client_pb2.Stray) -> Facts:
    """Return the facts on an attempt that a node has and the journal does not."""
    return {
        "id": stray.job_id,
        "attempt": stray.attempt,
        "kind": stray.kind,
        "gpu_uuids": list(stray.gpus),
        "orphan": stray.orphan,
        "ending": stray.ending,
    }


def nvlinks(node: client_pb2.Node) -> list[list[str]]:
    """Return the pairs of UUIDs of the node's GPUs that NVLink joins, each pair once."""
    joined = agent_pb2.GPU_LINK_NVLINK
    links = [(gpu.info.uuid, peer.uuid) for gpu in node.gpus for peer in gpu.info.peers if peer.link == joined]
    return [list(pair) for pair in sorted({(min(link), max(link)) for link in links})]


def event_facts(event: client_pb2.Event) -> Facts:
    """Return the facts on one recorded event."""
    return {
        "sequence": event.sequence,
        "time": event.time,
        "kind": event.kind,
        "id": event.job_id or None,
        "node": event.node or None,
        "text": event.text,
        "event": _event_body(event),
    }


def _event_body(event: client_pb2.Event) -> Facts | None:
    """Return the event itself, without the job's environment, which may hold secrets."""
    body: Facts | None = json.loads(event.json) if event.json else None
    if body and isinstance(body.get("spec"), dict):
        body["spec"].pop("env", None)
    return body


def _spec_facts(spec: job_pb2.JobSpec) -> Facts:
    """Return what the job requests, without its environment, which may hold secrets."""
    return {
        "name": spec.name,
        "command": list(spec.command),
        "resume_args": list(spec.resume_args),
        "workdir": spec.workdir,
        "class": CLASSES[spec.job_class],
        "priority": spec.priority,
        "weight": spec.weight,
        "group": spec.group or None,
        "num_nodes": max(1, spec.nodes),
        "max_nodes": max(1, spec.nodes, spec.max_nodes),
        "gpu_mem_bytes": spec.gpu_mem_bytes,
        "cpus": spec.cpus,
        "mem_bytes": spec.mem_bytes,
        "needs": needs_facts(spec.needs),
        "grace_s": spec.grace_s,
        "time_limit_s": _optional(spec, "time_limit_s"),
        "time_auto": spec.time_auto,
        "suspend": SUSPEND_MODES[spec.suspend],
        "move_checkpoints": spec.move_checkpoints,
        "launch": LAUNCH_MODES[spec.launch],
        "retries": spec.retries,
        "exit0": EXIT_ZEROS[spec.exit_zero],
        "signal": spec.signal,
        "signal_target": SIGNAL_TARGETS[spec.signal_target],
        **printed_facts(spec),
        "warm": not spec.cold,
        "sdk": not spec.no_sdk,
        "idle_ok": spec.idle_ok,
        "asha": asha_facts(spec.asha) if spec.HasField("asha") else None,
        "python_env": spec.python_env or None,
        "slurm": spec.slurm,
        "kind": KINDS[spec.kind],
        "idle_limit_s": _optional(spec, "idle_limit_s"),
        "failover_after_s": _optional(spec, "failover_after_s"),
        "stdin": spec.stdin,
    }


def asha_facts(asha: job_pb2.Asha) -> Facts:
    """Return how tasks are compared, with the names that ``ebb submit --asha`` uses."""
    mode = "max" if asha.maximise else "min"
    steps = {"min-steps": asha.min_steps, "max-steps": asha.max_steps}
    return {"metric": asha.metric, "mode": mode, "eta": asha.eta, **steps}


def _progress_facts(job: client_pb2.Job) -> Facts:
    known = job.HasField("progress")
    return {
        "step": job.progress.step if known else None,
        "total": _optional(job.progress, "total"),
        "loss": _optional(job.progress, "loss"),
        "metrics": dict(job.progress.metrics) | dict.fromkeys(job.progress.diverged),
    }


def _rate_facts(rate: client_pb2.Rate) -> Facts:
    return {
        "gpus": _number(rate.gpus),
        "nodes": rate.nodes,
        "model": rate.model,
        "alone": rate.alone,
        "steps_per_s": rate.steps_per_s,
        "samples": rate.samples,
    }


def _checkpoint_facts(checkpoint: job_pb2.Checkpoint) -> Facts:
    return {
        "step": _optional(checkpoint, "step"),
        "bytes": checkpoint.bytes,
        "path": checkpoint.path,
        "verified": checkpoint.verified,
    }


def _suspension_facts(suspension: client_pb2.Suspension) -> Facts:
    return {
        "requested": _time(suspension.requested),
        "exited": _optional(suspension, "exited"),
        "gpu_free": _optional(suspension, "gpu_free"),
        "resumed": _optional(suspension, "resumed"),
        "checkpointed": CHECKPOINTED[suspension.checkpointed],
        "checkpoint_s": _optional(suspension, "checkpoint_s"),
        "checkpoint_bytes": _optional(suspension, "checkpoint_bytes"),
        "reason": suspension.reason,
        "note": suspension.note or None,
        "parts_s": {part: suspension.parts_s[part] for part in PARTS if part in suspension.parts_s},
        "placed": _optional(suspension, "placed"),
        "working": _optional(suspension, "working"),
        "left_step": _optional(suspension, "left_step"),
        "working_step": _optional(suspension, "working_step"),
        "kept_step": _optional(suspension, "kept_step"),
        "lost": suspension.lost or None,
        "hint": suspension.hint or None,
        "gpu_uuids_before": list(suspension.gpu_uuids_before),
        "gpu_uuids_after": list(suspension.gpu_uuids_after),
    }


def _attempt_facts(attempt: client_pb2.AttemptSummary) -> Facts:
    return {
        "attempt": attempt.attempt,
        "placed_time": _time(attempt.placed_time),
        "start_time": _optional(attempt, "start_time"),
        "end_time": _optional(attempt, "end_time"),
        "nodes": [node.node for node in attempt.allocation],
        "gpu_uuids": _gpu_uuids(attempt.allocation),
        "outcome": attempt.outcome or None,
        "resumed_step": _optional(attempt, "resumed_step"),
        "pid": attempt.pid or None,
        "gpu_mem_peak_bytes": _optional(attempt, "gpu_mem_peak_bytes"),
        "warm": _optional(attempt, "warm"),
        "earlier_cpu_s": _optional(attempt, "earlier_cpu_s"),
        "sharing": attempt.sharing or None,
        "limited_by": attempt.limited_by or None,
        "edited": list(attempt.edited),
    }


def _allocation_facts(node: client_pb2.NodeAllocation) -> Facts:
    gpus = [{"uuid": gpu.uuid, "share": _number(gpu.share), "mem_bytes": gpu.mem_bytes} for gpu in node.gpus]
    return {"node": node.node, "gpus": gpus}


def why_unusable(gpu: client_pb2.NodeGpu) -> str:
    """Say why a GPU is not used: the master set it aside, or its last reading is unhealthy; empty if it is usable."""
    if not gpu.info.healthy:
        return gpu.info.unhealthy_reason or "unhealthy"
    if gpu.HasField("reading") and not gpu.reading.healthy:
        return gpu.reading.unhealthy_reason or "unhealthy"
    return ""


def _gpu_facts(gpu: client_pb2.NodeGpu) -> Facts:
    reading = gpu.reading
    unusable = why_unusable(gpu)
    return {
        "uuid": gpu.info.uuid,
        "index": gpu.info.index,
        "model": gpu.info.model,
        "mem_bytes": gpu.info.mem_bytes,
        "mem_used_bytes": _optional(reading, "mem_used_bytes"),
        "utilisation": _optional(reading, "utilisation"),
        "healthy": not unusable,
        "unhealthy_reason": unusable,
        "temperature_c": _optional(reading, "temperature_c"),
        "power_w": _optional(reading, "power_w"),
        "pci_bus_id": gpu.info.pci_bus_id or None,
        "numa_node": _optional(gpu.info, "numa_node"),
        "compute_capability": gpu.info.compute_capability or None,
        "mig_parent": gpu.info.parent or None,
        "links": {peer.uuid: word for peer in gpu.info.peers if (word := LINKS.get(peer.link))},
        "share_allocated": _number(gpu.share_allocated),
        "mps": gpu.info.mps,
        "job_ids": list(gpu.job_ids),
        "processes": [_process_facts(process) | {"id": process.job_id or None} for process in reading.processes],
        "foreign": [_process_facts(process) for process in gpu.foreign],
        "reserved": gpu.reserved or None,
    }


def _process_facts(process: agent_pb2.GpuProcess) -> Facts:
    return {
        "pid": process.pid,
        "mem_bytes": _optional(process, "mem_bytes"),
        "user": process.user,
        "command": process.command,
    }


def _gpu_uuids(allocation: Any) -> list[str]:
    return [gpu.uuid for node in allocation for gpu in node.gpus]


def _number(share: job_pb2.Share) -> float | int:
    value = share_of(share)
    return value.numerator if value.denominator == 1 else float(value)


def _time(seconds: float) -> float | None:
    """Return a time on the wire; zero means that it has not come, and becomes null."""
    return seconds or None


def _optional(message: Any, field: str) -> Any:
    """Return an optional field; null if it is not set."""
    return getattr(message, field) if message.HasField(field) else None


# --- what a job waits for, and its array ---


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


# --- what a job requires of nodes, and what becomes of these ---


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


# --- its snapshot, and what is done with its output ---


def printed_facts(spec: job_pb2.JobSpec) -> dict[str, Any]:
    """Return the facts on the snapshot and the output in a job's request."""
    rules = [{"pattern": rule.pattern, "action": LOG_ACTIONS.get(rule.action, "")} for rule in spec.log_rules]
    notify = [{"events": list(rule.moments), "target": rule.target} for rule in spec.notify]
    held = {"digest": spec.snapshot.digest, "bytes": spec.snapshot.bytes} if spec.HasField("snapshot") else None
    return {
        "snapshot": held,
        "output": spec.output or None,
        "prefix_ranks": spec.prefix_ranks,
        "log_rules": rules,
        "notify": notify,
    }


def printed_words(spec: job_pb2.JobSpec) -> Iterator[tuple[str, str]]:
    """Yield the same facts in words, each with its title."""
    if spec.HasField("snapshot"):
        yield "snapshot", f"{spec.snapshot.digest[:12]}, {format_size(spec.snapshot.bytes)} as it was at submit"
    yield "output", spec.output
    for rule in spec.log_rules:
        yield "on log", f"{rule.pattern}: {LOG_ACTIONS.get(rule.action, '')}"
    for notice in spec.notify:
        yield "notify", f"{notice.target} when {', '.join(notice.moments)}"
