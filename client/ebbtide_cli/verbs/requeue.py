"""``ebb requeue``: put jobs back into the queue, or run them once more."""

import os

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import examples, ids_argument, json_option, master_option
from ebbtide_cli.describing.facts import job_facts
from ebbtide_cli.describing.jobs import summary
from ebbtide_cli.errors import OK, Failure, Unreachable
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.terminal.output import complain, print_json


@click.command(epilog=examples("ebb requeue 17", "ebb requeue --failed 18"))
@ids_argument
@click.option("--failed", is_flag=True, help="Requeue only the failed tasks of an array, with the same indices.")
@json_option
@master_option
def command(job_ids: tuple[str, ...], failed: bool, as_json: bool, master: str | None) -> int:
    """Put jobs back into the queue: a running job is suspended first, a finished one is submitted again.

    A job that is submitted again has a new id, which is printed. Requeuing costs a job none of its retries.
    """
    code, jobs = OK, list[client_pb2.Job]()
    for job_id in dict.fromkeys(job_ids):
        try:
            job = _requeue(master, job_id, failed)
        except Unreachable:
            raise
        except Failure as failure:
            complain(failure.message)
            code = max(code, failure.code)
            continue
        jobs.append(job)
        if not as_json:
            print(
                summary(job) if job.job_id == job_id else f"job {job_id} submitted again: job {job.job_id}", flush=True
            )
    if as_json:
        print_json([job_facts(job) for job in jobs])
    return code


def _requeue(master: str | None, job_id: str, failed: bool) -> client_pb2.Job:
    operation = os.urandom(16).hex()
    request = client_pb2.RequeueRequest(job_id=job_id, failed=failed, operation_id=operation, user=user_name())
    with connected(master) as stub:
        return ask(stub.Requeue, request)
