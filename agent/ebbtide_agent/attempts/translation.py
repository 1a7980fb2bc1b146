"""Translates between the wire's messages and the JSON that supervisors read and write."""

import re
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from ebbtide_protos.mapping import Mapper, Wire, Wires, negated
from ebbtide_protos.v1 import agent_pb2, job_pb2
from google.protobuf import json_format

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.contract.attempt_dir import is_job_id
from ebbtide_agent.contract.intent import AllocatedGpu, Intent, LogPattern
from ebbtide_agent.network import Network

# The program runs isolated (-I -S) from the Python settings in the job's environment.
_BOOT = "import sys; sys.path.append(sys.argv[1]); from ebbtide_agent.{} import main; sys.exit(main(sys.argv[2:]))"
_OUTPUT = re.compile(r"\{output:([0-9]{1,18}(?:\.[0-9]{1,18})?)\}")
_PACKAGES = str(Path(__file__).parents[2])

_OF_NODE: Final = frozenset({
    "account", "cluster_id", "command", "ddp", "fake_gpu_dir", "gpus", "job_checkpoint_dir", "leased_at", "limited_by",
    "log_rules", "meets", "network", "node_dir", "num_nodes", "output", "session", "sharing", "sharing_env", "swaps",
    "warm",
})  # fmt: skip
"""Fields of an `Intent` that this node sets; all others are copied from the order's or job's field of the same name."""
_WIRES: Final[Wires] = {Intent: {"ranks_before": Wire(name="first_rank"), "sdk": negated("no_sdk")}}
_NAMES: Final = frozenset(field.name for field in fields(Intent)) - _OF_NODE
_OF_JOB: Final = frozenset({*job_pb2.JobSpec.DESCRIPTOR.fields_by_name, "sdk"}) & _NAMES
_ORDERS: Final = Mapper(Intent, agent_pb2.Launch, _WIRES, beside=_OF_NODE | _OF_JOB)
_JOBS: Final = Mapper(Intent, job_pb2.JobSpec, _WIRES, beside=_OF_NODE | (_NAMES - _OF_JOB), lenient=True)


def intent_of(
    order: agent_pb2.Launch,
    *,
    node_dir: Path,
    checkpoint_root: Path,
    cluster_id: str,
    fake_gpu_dir: Path | None,
    network: Network,
    account: Account | None = None,
) -> Intent:
    """Return the intent for this order. Raises ValueError for an invalid job id."""
    if not is_job_id(order.job_id):
        raise ValueError(f"{order.job_id!r} is not a job id")
    spec = order.spec
    return Intent(
        **_ORDERS.values(order),
        **_JOBS.values(spec),
        cluster_id=cluster_id,
        command=_command(spec, checkpoint_root / cluster_id),
        gpus=tuple(_gpu(gpu) for gpu in order.gpus),
        ddp=spec.launch == job_pb2.LAUNCH_MODE_DDP,
        num_nodes=max(1, order.num_nodes),
        meets=order.num_nodes > 1 or spec.max_nodes > 1,
        network=network,
        warm=not spec.cold and spec.kind != job_pb2.JOB_KIND_SHELL,
        swaps=spec.suspend == job_pb2.SUSPEND_MODE_SWAP,
        node_dir=str(node_dir),
        job_checkpoint_dir=str(checkpoint_root / cluster_id / order.job_id),
        fake_gpu_dir="" if fake_gpu_dir is None else str(fake_gpu_dir),
        log_rules=_log_rules([*spec.log_rules, *order.log_rules]),
        output=str(Path(spec.workdir, spec.output)) if spec.output else "",
        account=account,
        session=spec.kind == job_pb2.JOB_KIND_SHELL,
    )


def in_workdir(intent: Intent, spec: job_pb2.JobSpec, workdir: Path, *, has_own: bool) -> Intent:
    """Return the intent in this directory; its output stays in the directory of the submit if the node `has_own`."""
    output = spec.output and (intent.output if has_own else str(workdir / spec.output))
    return replace(intent, workdir=str(workdir), output=output)


def _command(spec: job_pb2.JobSpec, jobs: Path) -> tuple[str, ...]:
    """Return the command line. `channels.shell` keeps a shell's terminal when its user disconnects, `channels.server`
    gives a server its port. In a server's command `{output:17}` stands for job 17's EBB_OUTPUT_DIR."""
    match spec.kind:
        case job_pb2.JOB_KIND_SHELL:
            return (*_python("channels.shell"), *spec.command)
        case job_pb2.JOB_KIND_NOTEBOOK | job_pb2.JOB_KIND_TENSORBOARD:
            found = [_OUTPUT.sub(lambda job: str(jobs / job[1] / "output"), argument) for argument in spec.command]
            return (*_python("channels.server"), *found)
    return tuple(spec.command)


def _python(module: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", _BOOT.format(module), _PACKAGES)


def allocation_of(intent: Intent) -> tuple[job_pb2.GpuAllocation, ...]:
    """Return the GPUs that the attempt holds on this node."""
    return tuple(
        job_pb2.GpuAllocation(
            uuid=gpu.uuid,
            share=job_pb2.Share(numerator=gpu.numerator, denominator=gpu.denominator),
            mem_bytes=gpu.mem_bytes,
        )
        for gpu in intent.gpus
    )


def refusal(
    order: agent_pb2.Launch, reason: str, cause: agent_pb2.RefusalCause.ValueType = agent_pb2.REFUSAL_CAUSE_UNSPECIFIED
) -> agent_pb2.AttemptStatus:
    """Return the status of an attempt that is not started on this node."""
    return agent_pb2.AttemptStatus(
        job_id=order.job_id,
        attempt=order.attempt,
        phase=agent_pb2.ATTEMPT_PHASE_REFUSED,
        refusal=reason,
        refusal_cause=cause,
    )


def freed(status: agent_pb2.AttemptStatus, dirty: Mapping[str, str]) -> agent_pb2.AttemptStatus:
    """Return an ended attempt's status now that its GPUs are free, except the dirty ones, each with its reason."""
    changed = agent_pb2.AttemptStatus()
    changed.CopyFrom(status)
    changed.phase = agent_pb2.ATTEMPT_PHASE_FREED
    changed.dirty_gpus[:], changed.dirty_reasons[:] = list(dirty), list(dirty.values())
    return changed


def status_of(content: dict[str, Any]) -> agent_pb2.AttemptStatus:
    """Return a supervisor's status as the wire's. Raises ValueError if it is not a status."""
    try:
        return json_format.ParseDict(content, agent_pb2.AttemptStatus(), ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise ValueError(f"not a status: {error}") from None


def _log_rules(rules: list[job_pb2.LogRule]) -> tuple[LogPattern, ...]:
    """Return the rules with each pattern once; the job's rules come first, and so win over the administrator's."""
    actions: dict[str, job_pb2.LogAction.ValueType] = {}
    for rule in rules:
        actions.setdefault(rule.pattern, rule.action)
    known = job_pb2.LogAction.values()
    return tuple(
        LogPattern(what, job_pb2.LogAction.Name(action)) for what, action in actions.items() if action in known
    )


def _gpu(gpu: job_pb2.GpuAllocation) -> AllocatedGpu:
    share = Fraction(gpu.share.numerator, gpu.share.denominator or 1)
    return AllocatedGpu(gpu.uuid, share.numerator, share.denominator, gpu.mem_bytes)
