"""Say of each request on a job when it has taken effect: given the job now, and as it was when the master accepted."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.describing.facts import share_of

if TYPE_CHECKING:
    from ebbtide_cli.values import GpuRange

Effective = Callable[[client_pb2.Job, client_pb2.Job], bool]


def suspended(job: client_pb2.Job, _: client_pb2.Job) -> bool:
    """Whether the job has left its GPUs; one that had not started holds nothing, and needs only to be held."""
    waiting = job.state in (job_pb2.JOB_STATE_SUSPENDED, job_pb2.JOB_STATE_PENDING)
    freed = not job.suspensions or job.suspensions[-1].HasField("gpu_free")
    return waiting and freed and bool(job.held_by)


def resumed(job: client_pb2.Job, _: client_pb2.Job) -> bool:
    """Whether the job runs again; a short one may have run and finished between two reports on it."""
    return job.state in (job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_COMPLETED, job_pb2.JOB_STATE_FAILED)


def cancelled(job: client_pb2.Job, _: client_pb2.Job) -> bool:
    """Whether the job was ended by its cancelling."""
    return job.state == job_pb2.JOB_STATE_CANCELLED


def resized(gpus: "GpuRange") -> Effective:
    """Return whether the job has so many GPUs; one without GPUs has its new size once the request is recorded."""

    def effective(job: client_pb2.Job, accepted: client_pb2.Job) -> bool:
        if accepted.state in (job_pb2.JOB_STATE_PENDING, job_pb2.JOB_STATE_SUSPENDED):
            return True
        return job.state == job_pb2.JOB_STATE_RUNNING and gpus.low <= share_of(job.gpus_allocated) <= gpus.high

    return effective
