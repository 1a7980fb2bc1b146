"""A job as the core knows it, turned into the message that submits it."""

from ebbtide_core.model import ExitZero, JobClass, LaunchMode, SuspendMode, gpus
from ebbtide_core.spec import JobSpec
from ebbtide_protos.v1 import job_pb2

CLASSES = {
    JobClass.BEST_EFFORT: job_pb2.JOB_CLASS_BEST_EFFORT,
    JobClass.TRIAL_AND_ERROR: job_pb2.JOB_CLASS_TRIAL_AND_ERROR,
}
SUSPEND_MODES = {
    SuspendMode.CHECKPOINT: job_pb2.SUSPEND_MODE_CHECKPOINT,
    SuspendMode.NONE: job_pb2.SUSPEND_MODE_NONE,
}
LAUNCH_MODES = {
    LaunchMode.SINGLE: job_pb2.LAUNCH_MODE_SINGLE,
    LaunchMode.DDP: job_pb2.LAUNCH_MODE_DDP,
}
EXIT_ZEROS = {
    ExitZero.SUSPENDED: job_pb2.EXIT_ZERO_SUSPENDED,
    ExitZero.COMPLETED: job_pb2.EXIT_ZERO_COMPLETED,
}


def spec_message(spec: JobSpec) -> job_pb2.JobSpec:
    """Write a checked spec for the wire."""
    return job_pb2.JobSpec(
        name=spec.name,
        command=spec.command,
        workdir=spec.workdir,
        env=spec.env,
        gpus_min=share_message(spec.gpus_min),
        gpus_max=share_message(spec.gpus_max),
        gpu_mem_bytes=spec.gpu_mem_bytes,
        cpus=spec.cpus,
        mem_bytes=spec.mem_bytes,
        job_class=CLASSES[spec.job_class],
        priority=spec.priority,
        grace_s=spec.grace_s,
        time_limit_s=spec.time_limit_s,
        suspend=SUSPEND_MODES[spec.suspend],
        launch=LAUNCH_MODES[spec.launch],
        retries=spec.retries,
        exit_zero=EXIT_ZEROS[spec.exit_zero],
        signal=spec.signal,
    )


def share_message(parts: int) -> job_pb2.Share:
    """Write a number of GPUs, in parts, as an exact fraction."""
    share = gpus(parts)
    return job_pb2.Share(numerator=share.numerator, denominator=share.denominator)
