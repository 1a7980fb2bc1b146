"""``ebb release``: let held jobs start."""

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.connection import ask
from ebbtide_cli.job_requests import grant, wait_option
from ebbtide_cli.verb import examples, ids_argument, json_option, master_option


@click.command(epilog=examples("ebb release 17", "ebb release 17 18"))
@ids_argument
@wait_option
@json_option
@master_option
def command(job_ids: tuple[str, ...], wait: bool, as_json: bool, master: str | None) -> int:
    """Let held jobs start, whoever held them, and let them use the nodes that they were excluded from."""
    return grant(
        master,
        job_ids,
        lambda stub, job_id: ask(stub.Release, client_pb2.JobRequest(job_id=job_id)),
        lambda job, _: not job.held_by,
        wait=wait,
        as_json=as_json,
    )
