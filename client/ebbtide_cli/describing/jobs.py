"""Describe a job's state in words for a person."""

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.describing.facts import FINISHED, share_of, state_of
from ebbtide_cli.terminal.text import format_count, printable
from ebbtide_cli.values import format_duration

SAVED_WORDS = {
    job_pb2.CHECKPOINTED_UNKNOWN: "it is unknown whether it saved",
    job_pb2.CHECKPOINTED_YES: "saved",
    job_pb2.CHECKPOINTED_NO: "not saved",
}


def finished(job: client_pb2.Job) -> bool:
    """Whether the job has ended for good."""
    return job.state in FINISHED


def progress_words(job: client_pb2.Job) -> str:
    """Return the job's progress, as in ``120/1000 12%`` or ``120``; a dash if it reports none."""
    if not job.HasField("progress"):
        return "-"
    step = job.progress.step
    return str(step) if done(job) is None else f"{step}/{job.progress.total} {100 * step // job.progress.total}%"


def done(job: client_pb2.Job) -> float | None:
    """Return the share of its steps that a job has done, at most 1; None if it did not report how many there are."""
    progress = job.progress
    return min(progress.step / progress.total, 1.0) if progress.HasField("total") and progress.total > 0 else None


def gpus_words(job: client_pb2.Job) -> str:
    """Return the GPUs that a job holds and that it asked for: ``2``, ``1-4``, ``2 of 1-4``."""
    low, high = share_of(job.spec.gpus_min), share_of(job.spec.gpus_max)
    asked = format_count(low) if low == high else f"{format_count(low)}-{format_count(high)}"
    held = share_of(job.gpus_allocated)
    return f"{format_count(held)} of {asked}" if held and low != high else asked


def times_words(job: client_pb2.Job) -> str:
    """Return how long the job waited and how long it ran."""
    return f"{format_duration(job.waiting_s)}/{format_duration(job.running_s)}"


def node_words(job: client_pb2.Job) -> str:
    """Return the nodes that the job is on, or a dash."""
    return ",".join(node.node for node in job.allocation) or "-"


def summary(job: client_pb2.Job) -> str:
    """Return a line that is safe for a terminal: the job's id, state and reason."""
    reason = f" ({job.reason})" if job.reason else ""
    return printable(f"job {job.job_id} {state_of(job)}{reason}")


def left(job: client_pb2.Job) -> client_pb2.Suspension | None:
    """Return the suspension that keeps the job off its GPUs now; None if there is none, or the job has not left yet."""
    newest = job.suspensions[-1] if job.suspensions else None
    waits = job.state in (job_pb2.JOB_STATE_SUSPENDED, job_pb2.JOB_STATE_PENDING)
    away = newest is not None and newest.HasField("exited") and not newest.HasField("resumed")
    return newest if waits and away else None


def is_unsaved(job: client_pb2.Job) -> bool:
    """Whether the job has left its GPUs and certainly lost work by that."""
    newest = left(job)
    return newest is not None and newest.checkpointed == job_pb2.CHECKPOINTED_NO and bool(newest.lost)


def saved_words(suspension: client_pb2.Suspension) -> str:
    """Say what became of the work of a suspended job: ``saved``, ``not saved: steps 110-340 will be repeated``, …"""
    words = SAVED_WORDS[suspension.checkpointed]
    return f"{words}: {suspension.lost}" if suspension.lost else words


def exit_status(job: client_pb2.Job, failure: int) -> int:
    """Return the job's own exit code, as a shell gives it; ``failure`` if it ended badly without a code of its own."""
    code = job.exit_code if job.HasField("exit_code") else 0
    if job.state == job_pb2.JOB_STATE_COMPLETED:
        return code
    shell_code = 128 - code if code < 0 else code
    return shell_code & 0xFF or failure
