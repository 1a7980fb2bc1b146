"""Jobs in words: how a person reads the state of one."""

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.facts import FINISHED, share_of, state_of
from ebbtide_cli.text import format_count, printable
from ebbtide_cli.values import format_duration

SAVED_WORDS = {
    job_pb2.CHECKPOINTED_UNKNOWN: "nobody knows whether it saved",
    job_pb2.CHECKPOINTED_YES: "saved",
    job_pb2.CHECKPOINTED_NO: "not saved",
}


def finished(job: client_pb2.Job) -> bool:
    """Whether nothing can follow."""
    return job.state in FINISHED


def progress_words(job: client_pb2.Job) -> str:
    """``120/1000 12%``, ``120``, or a dash."""
    if not job.HasField("progress"):
        return "-"
    step = job.progress.step
    return str(step) if done(job) is None else f"{step}/{job.progress.total} {100 * step // job.progress.total}%"


def done(job: client_pb2.Job) -> float | None:
    """The share of its steps that a job has done, at most 1; None if it did not say of how many."""
    progress = job.progress
    return min(progress.step / progress.total, 1.0) if progress.HasField("total") and progress.total > 0 else None


def gpus_words(job: client_pb2.Job) -> str:
    """What it holds and what it asked for: ``2``, ``1-4``, ``2 of 1-4``."""
    low, high = share_of(job.spec.gpus_min), share_of(job.spec.gpus_max)
    asked = format_count(low) if low == high else f"{format_count(low)}-{format_count(high)}"
    held = share_of(job.gpus_allocated)
    return f"{format_count(held)} of {asked}" if held and low != high else asked


def times_words(job: client_pb2.Job) -> str:
    """How long it waited and how long it ran."""
    return f"{format_duration(job.waiting_s)}/{format_duration(job.running_s)}"


def node_words(job: client_pb2.Job) -> str:
    """The nodes it is on, or a dash."""
    return ",".join(node.node for node in job.allocation) or "-"


def summary(job: client_pb2.Job) -> str:
    """One line, safe for a terminal: id, state, reason."""
    reason = f" ({job.reason})" if job.reason else ""
    return printable(f"job {job.job_id} {state_of(job)}{reason}")


def left(job: client_pb2.Job) -> client_pb2.Suspension | None:
    """The suspension by which it is off its GPUs now; None if it is not, or has not left yet."""
    newest = job.suspensions[-1] if job.suspensions else None
    waits = job.state in (job_pb2.JOB_STATE_SUSPENDED, job_pb2.JOB_STATE_PENDING)
    away = newest is not None and newest.HasField("exited") and not newest.HasField("resumed")
    return newest if waits and away else None


def is_unsaved(job: client_pb2.Job) -> bool:
    """Whether it has left, and work of it was lost by that for certain."""
    newest = left(job)
    return newest is not None and newest.checkpointed == job_pb2.CHECKPOINTED_NO and bool(newest.lost)


def saved_words(suspension: client_pb2.Suspension) -> str:
    """What became of the work of a job that has left: ``saved``, ``not saved: steps 110-340 will be repeated``, …"""
    words = SAVED_WORDS[suspension.checkpointed]
    return f"{words}: {suspension.lost}" if suspension.lost else words


def exit_status(job: client_pb2.Job, failure: int) -> int:
    """The job's own exit code as a shell has it; ``failure`` for one that ended badly without a code of its own."""
    code = job.exit_code if job.HasField("exit_code") else 0
    if job.state == job_pb2.JOB_STATE_COMPLETED:
        return code
    shell_code = 128 - code if code < 0 else code
    return shell_code & 0xFF or failure
