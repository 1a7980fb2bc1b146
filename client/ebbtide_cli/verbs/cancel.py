"""``ebb cancel``: end jobs for good."""

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import examples, ids_argument, json_option, master_option
from ebbtide_cli.describing.effects import cancelled
from ebbtide_cli.job_requests import grant, wait_option
from ebbtide_cli.masters.connection import ask


@click.command(epilog=examples("ebb cancel 17", "ebb cancel --now 17 18"))
@ids_argument
@click.option("--now", is_flag=True, help="Kill at once, without the grace period.")
@wait_option
@json_option
@master_option
def command(job_ids: tuple[str, ...], now: bool, wait: bool, as_json: bool, master: str | None) -> int:
    """End jobs for good, with their grace period."""
    return grant(
        master,
        job_ids,
        lambda stub, job_id: ask(stub.Cancel, client_pb2.CancelRequest(job_id=job_id, now=now)),
        cancelled,
        wait=wait,
        as_json=as_json,
    )
