"""``ebb resume``: let suspended jobs go on."""

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.job_requests import request_verb


def _resumed(job: client_pb2.Job, _: client_pb2.Job) -> bool:
    # A short job may have run and finished between two reports on it.
    return job.state in (job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_COMPLETED, job_pb2.JOB_STATE_FAILED)


command = request_verb(
    """Resume suspended jobs, and release held ones, from their newest checkpoint as soon as GPUs are free.

    With --wait, return when they run again.
    """,
    "ebb resume 17",
    "ebb resume --wait 17",
    method=lambda stub: stub.Resume,
    effective=_resumed,
)
