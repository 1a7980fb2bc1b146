"""A job's request and its GPU shares, between the wire and the core: the one place that knows both."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeVar

from ebbtide_core.model import limits
from ebbtide_core.model.asha import Asha, Mode
from ebbtide_core.model.constraints import NO_NEEDS
from ebbtide_core.model.dependency import AfterKind, Dependency
from ebbtide_core.model.spec import JobSpec, SpecError
from ebbtide_core.model.types import (
    ExitZero,
    JobClass,
    JobId,
    JobKind,
    LaunchMode,
    SignalTarget,
    SuspendMode,
    gpus,
    parts,
)

from ebbtide_protos.needs import needs_from_message, needs_to_message
from ebbtide_protos.notices import notice_rule_from_message, notice_rule_to_message
from ebbtide_protos.printed import rule_from_message, rule_to_message
from ebbtide_protos.snapshots import snapshot_from_message, snapshot_to_message
from ebbtide_protos.v1 import job_pb2

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
    job_pb2.SUSPEND_MODE_SWAP: SuspendMode.SWAP,
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
_SIGNAL_TARGETS = {
    job_pb2.SIGNAL_TARGET_UNSPECIFIED: SignalTarget.AUTO,
    job_pb2.SIGNAL_TARGET_AUTO: SignalTarget.AUTO,
    job_pb2.SIGNAL_TARGET_LEADER: SignalTarget.LEADER,
    job_pb2.SIGNAL_TARGET_ALL: SignalTarget.ALL,
}
_AFTER = {
    job_pb2.AFTER_KIND_UNSPECIFIED: AfterKind.ANY,
    job_pb2.AFTER_KIND_ANY: AfterKind.ANY,
    job_pb2.AFTER_KIND_OK: AfterKind.OK,
    job_pb2.AFTER_KIND_NOT_OK: AfterKind.NOT_OK,
}
_AFTER_MESSAGES = {
    AfterKind.ANY: job_pb2.AFTER_KIND_ANY,
    AfterKind.OK: job_pb2.AFTER_KIND_OK,
    AfterKind.NOT_OK: job_pb2.AFTER_KIND_NOT_OK,
}
_KINDS = {
    job_pb2.JOB_KIND_UNSPECIFIED: JobKind.BATCH,
    job_pb2.JOB_KIND_BATCH: JobKind.BATCH,
    job_pb2.JOB_KIND_COMMAND: JobKind.COMMAND,
    job_pb2.JOB_KIND_SHELL: JobKind.SHELL,
    job_pb2.JOB_KIND_NOTEBOOK: JobKind.NOTEBOOK,
    job_pb2.JOB_KIND_TENSORBOARD: JobKind.TENSORBOARD,
}
_KIND_MESSAGES = {kind: message for message, kind in reversed(_KINDS.items())}  # of a batch job nothing is said
_CLASS_MESSAGES = {
    JobClass.BEST_EFFORT: job_pb2.JOB_CLASS_BEST_EFFORT,
    JobClass.TRIAL_AND_ERROR: job_pb2.JOB_CLASS_TRIAL_AND_ERROR,
}
_SUSPEND_MESSAGES = {
    SuspendMode.CHECKPOINT: job_pb2.SUSPEND_MODE_CHECKPOINT,
    SuspendMode.NONE: job_pb2.SUSPEND_MODE_NONE,
    SuspendMode.SWAP: job_pb2.SUSPEND_MODE_SWAP,
}
_LAUNCH_MESSAGES = {LaunchMode.SINGLE: job_pb2.LAUNCH_MODE_SINGLE, LaunchMode.DDP: job_pb2.LAUNCH_MODE_DDP}
_EXIT_ZERO_MESSAGES = {
    ExitZero.SUSPENDED: job_pb2.EXIT_ZERO_SUSPENDED,
    ExitZero.COMPLETED: job_pb2.EXIT_ZERO_COMPLETED,
}
_SIGNAL_TARGET_MESSAGES = {
    SignalTarget.AUTO: job_pb2.SIGNAL_TARGET_AUTO,
    SignalTarget.LEADER: job_pb2.SIGNAL_TARGET_LEADER,
    SignalTarget.ALL: job_pb2.SIGNAL_TARGET_ALL,
}


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
        time_auto=message.time_auto,
        suspend=_known("--suspend", _SUSPEND_MODES, message.suspend),
        launch=_known("--launch", _LAUNCH_MODES, message.launch),
        retries=message.retries,
        exit_zero=_known("--exit0", _EXIT_ZEROS, message.exit_zero),
        signal=message.signal or "SIGTERM",
        signal_target=_known("--signal-target", _SIGNAL_TARGETS, message.signal_target),
        weight=message.weight if message.HasField("weight") else 1.0,
        group=message.group,
        nodes=message.nodes or 1,
        resume_args=tuple(message.resume_args),
        warm=not message.cold,
        sdk=not message.no_sdk,
        max_nodes=message.max_nodes or 1,
        spread=message.max_nodes > 1,
        move_checkpoints=message.move_checkpoints,
        idle_ok=message.idle_ok,
        log_rules=tuple([rule_from_message(rule) for rule in message.log_rules]),
        output=message.output,
        prefix_ranks=message.prefix_ranks,
        snapshot=snapshot_from_message(message.snapshot) if message.HasField("snapshot") else None,
        notify=tuple([notice_rule_from_message(rule) for rule in message.notify]),
        script=message.script,
        python_env=message.python_env,
        slurm=message.slurm,
        scripts=dict(message.scripts),
        pool=message.pool,
        needs=needs_from_message(message.needs) if message.HasField("needs") else NO_NEEDS,
        after=tuple(Dependency(JobId(one.job_id), _known("--after", _AFTER, one.kind)) for one in message.after),
        begin_at=message.begin_at,
        asha=_asha(message.asha) if message.HasField("asha") else None,
        kind=_known("kind", _KINDS, message.kind),
        idle_limit_s=message.idle_limit_s or None,
        failover_after_s=message.failover_after_s if message.HasField("failover_after_s") else None,
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
        job_class=_CLASS_MESSAGES[spec.job_class],
        priority=spec.priority,
        grace_s=spec.grace_s,
        time_limit_s=spec.time_limit_s,
        time_auto=spec.time_auto,
        suspend=_SUSPEND_MESSAGES[spec.suspend],
        launch=_LAUNCH_MESSAGES[spec.launch],
        retries=spec.retries,
        exit_zero=_EXIT_ZERO_MESSAGES[spec.exit_zero],
        signal=spec.signal,
        signal_target=_SIGNAL_TARGET_MESSAGES[spec.signal_target],
        weight=spec.weight,
        group=spec.group,
        nodes=spec.nodes,
        resume_args=spec.resume_args,
        cold=not spec.warm,
        no_sdk=not spec.sdk,
        max_nodes=spec.max_nodes if spec.spread else 0,
        move_checkpoints=spec.move_checkpoints,
        idle_ok=spec.idle_ok,
        log_rules=[rule_to_message(rule) for rule in spec.log_rules],
        output=spec.output,
        prefix_ranks=spec.prefix_ranks,
        snapshot=None if spec.snapshot is None else snapshot_to_message(spec.snapshot),
        notify=[notice_rule_to_message(rule) for rule in spec.notify],
        script=spec.script,
        python_env=spec.python_env,
        slurm=spec.slurm,
        scripts=spec.scripts,
        pool=spec.pool,
        needs=None if spec.needs == NO_NEEDS else needs_to_message(spec.needs),
        after=[job_pb2.Dependency(job_id=one.job, kind=_AFTER_MESSAGES[one.kind]) for one in spec.after],
        begin_at=spec.begin_at,
        asha=None if spec.asha is None else _asha_message(spec.asha),
        kind=_KIND_MESSAGES[spec.kind],
        idle_limit_s=spec.idle_limit_s,
        failover_after_s=spec.failover_after_s,
    )


def _asha(message: job_pb2.Asha) -> Asha:
    return Asha(
        metric=message.metric,
        mode=Mode.MAX if message.maximise else Mode.MIN,
        eta=message.eta,
        min_steps=message.min_steps,
        max_steps=message.max_steps,
    )


def _asha_message(asha: Asha) -> job_pb2.Asha:
    return job_pb2.Asha(
        metric=asha.metric,
        maximise=asha.mode is Mode.MAX,
        eta=asha.eta,
        min_steps=asha.min_steps,
        max_steps=asha.max_steps,
    )


def _known(field: str, table: Mapping[Any, Value], value: int) -> Value:
    if value not in table:
        raise SpecError(field, f"{value} is not known to this version")
    return table[value]
