"""Between the wire and the core: messages to nouns and back. Nothing is decided here."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final, TypeVar

from ebbtide_core import commands as c
from ebbtide_core import events as e
from ebbtide_core import limits
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.model import (
    AttemptRef,
    Checkpoint,
    Checkpointed,
    ExitFacts,
    ExitZero,
    GpuFacts,
    GpuId,
    GpuSlice,
    JobClass,
    JobId,
    LaunchMode,
    NodeId,
    Progress,
    RefusalCause,
    SuspendMode,
    gpus,
    parts,
)
from ebbtide_core.spec import JobSpec, SpecError
from ebbtide_protos.v1 import agent_pb2, job_pb2

Value = TypeVar("Value")

_CLASSES = {
    job_pb2.JOB_CLASS_UNSPECIFIED: JobClass.BEST_EFFORT,
    job_pb2.JOB_CLASS_BEST_EFFORT: JobClass.BEST_EFFORT,
    job_pb2.JOB_CLASS_TRIAL_AND_ERROR: JobClass.TRIAL_AND_ERROR,
}
_SUSPEND_MODES = {
    job_pb2.SUSPEND_MODE_UNSPECIFIED: SuspendMode.CHECKPOINT,
    job_pb2.SUSPEND_MODE_CHECKPOINT: SuspendMode.CHECKPOINT,
    job_pb2.SUSPEND_MODE_NONE: SuspendMode.NONE,
}
_LAUNCH_MODES = {
    job_pb2.LAUNCH_MODE_UNSPECIFIED: LaunchMode.SINGLE,
    job_pb2.LAUNCH_MODE_SINGLE: LaunchMode.SINGLE,
    job_pb2.LAUNCH_MODE_DDP: LaunchMode.DDP,
}
_EXIT_ZEROS = {
    job_pb2.EXIT_ZERO_UNSPECIFIED: ExitZero.SUSPENDED,
    job_pb2.EXIT_ZERO_SUSPENDED: ExitZero.SUSPENDED,
    job_pb2.EXIT_ZERO_COMPLETED: ExitZero.COMPLETED,
}
_CHECKPOINTED = {
    job_pb2.CHECKPOINTED_UNKNOWN: Checkpointed.UNKNOWN,
    job_pb2.CHECKPOINTED_YES: Checkpointed.YES,
    job_pb2.CHECKPOINTED_NO: Checkpointed.NO,
}
_REFUSALS = {
    agent_pb2.REFUSAL_CAUSE_UNSPECIFIED: RefusalCause.NODE,
    agent_pb2.REFUSAL_CAUSE_BAD_JOB: RefusalCause.BAD_JOB,
    agent_pb2.REFUSAL_CAUSE_NO_CHECKPOINT: RefusalCause.NO_CHECKPOINT,
}
MAX_SIGNAL: Final = 64
MAX_FACT_LENGTH: Final = 256
CLASS_MESSAGES = {
    JobClass.BEST_EFFORT: job_pb2.JOB_CLASS_BEST_EFFORT,
    JobClass.TRIAL_AND_ERROR: job_pb2.JOB_CLASS_TRIAL_AND_ERROR,
}
SUSPEND_MESSAGES = {
    SuspendMode.CHECKPOINT: job_pb2.SUSPEND_MODE_CHECKPOINT,
    SuspendMode.NONE: job_pb2.SUSPEND_MODE_NONE,
}
LAUNCH_MESSAGES = {LaunchMode.SINGLE: job_pb2.LAUNCH_MODE_SINGLE, LaunchMode.DDP: job_pb2.LAUNCH_MODE_DDP}
EXIT_ZERO_MESSAGES = {
    ExitZero.SUSPENDED: job_pb2.EXIT_ZERO_SUSPENDED,
    ExitZero.COMPLETED: job_pb2.EXIT_ZERO_COMPLETED,
}
CHECKPOINTED_MESSAGES = {value: key for key, value in _CHECKPOINTED.items()}


def share_to_parts(field: str, share: job_pb2.Share) -> int:
    """A share of GPUs in parts; `SpecError` names ``field`` if it is not one."""
    if share.denominator == 0:
        raise SpecError(field, "is not a number of GPUs")
    try:
        return parts(Fraction(share.numerator, share.denominator))
    except ValueError as error:
        raise SpecError(field, f"{error} (1/n needs n of at most 16)") from None


def parts_to_share(count: int) -> job_pb2.Share:
    """Parts as a share of GPUs."""
    share = gpus(count)
    return job_pb2.Share(numerator=share.numerator, denominator=share.denominator)


def spec_from_message(message: job_pb2.JobSpec) -> JobSpec:
    """The job asked for; `SpecError` for what has no meaning at all. The core validates the rest."""
    whole = job_pb2.Share(numerator=1, denominator=1)
    low = share_to_parts("--gpus", message.gpus_min if message.HasField("gpus_min") else whole)
    high = share_to_parts("--gpus", message.gpus_max) if message.HasField("gpus_max") else low
    return JobSpec(
        command=tuple(message.command),
        workdir=message.workdir,
        name=message.name,
        env=dict(message.env),
        gpus_min=low,
        gpus_max=high,
        gpu_mem_bytes=message.gpu_mem_bytes,
        cpus=message.cpus,
        mem_bytes=message.mem_bytes,
        job_class=_known("--class", _CLASSES, message.job_class),
        priority=message.priority or limits.DEFAULT_PRIORITY,
        grace_s=message.grace_s if message.HasField("grace_s") else limits.DEFAULT_GRACE_S,
        time_limit_s=message.time_limit_s if message.HasField("time_limit_s") else None,
        suspend=_known("--suspend", _SUSPEND_MODES, message.suspend),
        launch=_known("--launch", _LAUNCH_MODES, message.launch),
        retries=message.retries,
        exit_zero=_known("--exit0", _EXIT_ZEROS, message.exit_zero),
        signal=message.signal or "SIGTERM",
    )


def spec_to_message(spec: JobSpec) -> job_pb2.JobSpec:
    """The job on the wire."""
    return job_pb2.JobSpec(
        name=spec.name,
        command=spec.command,
        workdir=spec.workdir,
        env=spec.env,
        gpus_min=parts_to_share(spec.gpus_min),
        gpus_max=parts_to_share(spec.gpus_max),
        gpu_mem_bytes=spec.gpu_mem_bytes,
        cpus=spec.cpus,
        mem_bytes=spec.mem_bytes,
        job_class=CLASS_MESSAGES[spec.job_class],
        priority=spec.priority,
        grace_s=spec.grace_s,
        time_limit_s=spec.time_limit_s,
        suspend=SUSPEND_MESSAGES[spec.suspend],
        launch=LAUNCH_MESSAGES[spec.launch],
        retries=spec.retries,
        exit_zero=EXIT_ZERO_MESSAGES[spec.exit_zero],
        signal=spec.signal,
    )


def slices_to_messages(slices: tuple[GpuSlice, ...]) -> Iterator[job_pb2.GpuAllocation]:
    """Slices of GPUs on the wire."""
    for piece in slices:
        yield job_pb2.GpuAllocation(uuid=piece.gpu, share=parts_to_share(piece.share), mem_bytes=piece.mem_bytes)


def order_to_message(order: c.Launch | c.Stop | c.Forget) -> agent_pb2.MasterMessage:
    """An order to a node on the wire."""
    match order:
        case c.Launch():
            rank = order.whole.nodes.index(order.here)
            launch = agent_pb2.Launch(
                job_id=order.job,
                attempt=order.attempt,
                spec=spec_to_message(order.spec),
                gpus=slices_to_messages(order.here.gpus),
                needs_checkpoint=order.needs_checkpoint,
                node_rank=rank,
                num_nodes=len(order.whole.nodes),
                world_size=len(order.whole.gpu_ids),
            )
            return agent_pb2.MasterMessage(launch=launch)
        case c.Stop():
            stop = agent_pb2.Stop(job_id=order.job, attempt=order.attempt, grace_s=order.grace_s)
            return agent_pb2.MasterMessage(stop=stop)
        case c.Forget():
            return agent_pb2.MasterMessage(forget=agent_pb2.Forget(job_id=order.job, attempt=order.attempt))


def registration_from_hello(hello: agent_pb2.Hello) -> e.NodeRegistered:
    """A node's facts; `SpecError` for what no node can have."""
    if not hello.node or len(hello.node) > limits.MAX_NODE_NAME_LENGTH or not hello.node.isprintable():
        raise SpecError("node", f"its name must be 1 to {limits.MAX_NODE_NAME_LENGTH} printable characters")
    uuids = {gpu.uuid for gpu in hello.gpus if 0 < len(gpu.uuid) <= MAX_FACT_LENGTH and gpu.uuid.isprintable()}
    if len(hello.gpus) > limits.MAX_GPUS_PER_NODE or len(uuids) != len(hello.gpus):
        raise SpecError("gpus", f"a node has at most {limits.MAX_GPUS_PER_NODE} GPUs, each with a UUID of its own")
    if not 0 < hello.cpus <= limits.MAX_CPUS or hello.mem_bytes > limits.MAX_MEM_BYTES:
        raise SpecError("cpus", f"{hello.cpus} CPUs and {hello.mem_bytes} bytes of memory cannot be")
    if any(gpu.mem_bytes > limits.MAX_MEM_BYTES for gpu in hello.gpus):
        raise SpecError("gpus", f"a GPU has at most {limits.MAX_MEM_BYTES} bytes of memory")
    for field in ("hostname", "boot_id", "version", "address", "checkpoint_root_id", "gpu_backend"):
        if len(getattr(hello, field)) > MAX_FACT_LENGTH:
            raise SpecError(field, f"is over the limit of {MAX_FACT_LENGTH} characters")
    return e.NodeRegistered(
        node=NodeId(hello.node),
        hostname=hello.hostname,
        boot_id=hello.boot_id,
        gpus=tuple(gpu_from_message(gpu) for gpu in hello.gpus),
        cpus=hello.cpus,
        mem_bytes=hello.mem_bytes,
        checkpoint_root_id=hello.checkpoint_root_id,
        gpu_backend=hello.gpu_backend,
        version=hello.version,
        address=hello.address,
        known=tuple(AttemptRef(JobId(status.job_id), status.attempt) for status in hello.attempts),
    )


def gpu_from_message(message: agent_pb2.GpuInfo) -> GpuFacts:
    """A GPU's facts."""
    reason = message.unhealthy_reason
    return GpuFacts(GpuId(message.uuid), message.index, message.model, message.mem_bytes, message.healthy, reason)


def facts_of_status(status: agent_pb2.AttemptStatus, node: NodeId, cluster: Cluster) -> Iterator[Event]:
    """All that an attempt's status implies, oldest first. The core drops what it knows already.

    A node is heard about its own attempts only.
    """
    job, attempt = JobId(status.job_id), status.attempt
    known = cluster.job(job)
    if known is None or not 0 < attempt <= len(known.attempts):
        return
    if node not in known.attempts[attempt - 1].allocation.node_ids:
        return
    if status.phase == agent_pb2.ATTEMPT_PHASE_REFUSED:
        yield e.AttemptRefused(job, attempt, _REFUSALS.get(status.refusal_cause, RefusalCause.NODE), status.refusal)
        return
    if status.started_at:
        resumed = status.resumed_step if status.HasField("resumed_step") else None
        yield e.AttemptStarted(job, attempt, status.pid, resumed)
    progress = progress_from_message(status.progress) if status.HasField("progress") else None
    if status.HasField("checkpoint"):
        yield e.CheckpointPublished(job, attempt, checkpoint_from_message(status.checkpoint))
    if status.phase in (agent_pb2.ATTEMPT_PHASE_EXITED, agent_pb2.ATTEMPT_PHASE_FREED):
        yield e.AttemptExited(job, attempt, exit_from_message(status), progress)
    elif progress is not None:
        yield e.ProgressReported(job, attempt, progress)
    if status.phase == agent_pb2.ATTEMPT_PHASE_FREED:
        yield e.AttemptFreed(job, attempt, tuple(GpuId(uuid) for uuid in status.dirty_gpus))


def exit_from_message(status: agent_pb2.AttemptStatus) -> ExitFacts:
    """What the supervisor saw of the end. Without a record of it, or with an impossible one, nobody knows."""
    record = status.exit
    possible = status.HasField("exit") and record.signal <= MAX_SIGNAL
    return ExitFacts(
        exit_code=record.exit_code,
        signal=record.signal if possible else 0,
        lost=status.lost or not possible,
        stop_requested=record.stop_requested,
        delivered=record.delivered,
        caught=record.caught,
        acknowledged=record.acknowledged,
        asked=record.asked,
        killed=record.killed,
        checkpointed=_CHECKPOINTED.get(record.checkpointed, Checkpointed.UNKNOWN),
        checkpoint_s=_seconds(record.checkpoint_s),
        ended_at=_seconds(record.ended_at),
    )


def progress_from_message(message: job_pb2.Progress) -> Progress:
    """A job's progress."""
    total = message.total if message.HasField("total") else None
    loss = message.loss if message.HasField("loss") else None
    return Progress(message.step, total, loss if loss is None or abs(loss) < float("inf") else None)


def checkpoint_from_message(message: job_pb2.Checkpoint) -> Checkpoint:
    """A published checkpoint."""
    return Checkpoint(message.step, message.bytes, message.path, message.verified)


def _seconds(value: float) -> float:
    """A time or a duration; 0 (unknown) for what is none, which JSON could not carry."""
    return value if 0.0 <= value < float("inf") else 0.0


def _known(field: str, table: Mapping[Any, Value], value: int) -> Value:
    if value not in table:
        raise SpecError(field, f"{value} is not known to this version")
    return table[value]
