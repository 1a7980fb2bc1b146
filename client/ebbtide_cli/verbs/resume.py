"""``ebb resume``: let suspended jobs go on."""

import click
from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.connection import ask
from ebbtide_cli.job_requests import grant, wait_option
from ebbtide_cli.verb import examples, ids_argument, json_option, master_option


@click.command(epilog=examples("ebb resume 17", "ebb resume --wait 17"))
@ids_argument
@wait_option
@json_option
@master_option
def command(job_ids: tuple[str, ...], wait: bool, as_json: bool, master: str | None) -> int:
    """Resume suspended jobs, and release held ones, from their newest checkpoint as soon as GPUs are free.

    With --wait, return when they run again.
    """
    return grant(
        master,
        job_ids,
        lambda stub, job_id: ask(stub.Resume, client_pb2.JobRequest(job_id=job_id)),
        _resumed,
        wait=wait,
        as_json=as_json,
    )


def _resumed(job: client_pb2.Job, _: client_pb2.Job) -> bool:
    # A short job may have run and finished between two reports on it.
    ran = (job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_COMPLETED, job_pb2.JOB_STATE_FAILED)
    return job.state in ran
