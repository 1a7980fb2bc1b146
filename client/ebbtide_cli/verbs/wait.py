"""``ebb wait``: wait until jobs have finished."""

import click
from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.afterwards import afterwards, afterwards_options
from ebbtide_cli.errors import FAILED, OK
from ebbtide_cli.facts import job_facts
from ebbtide_cli.jobs import finished, summary
from ebbtide_cli.output import print_json
from ebbtide_cli.verb import examples, ids_argument, json_option, master_option
from ebbtide_cli.watching import wait_for


@click.command(epilog=examples("ebb wait 17", "ebb wait 17 18 19 && ./evaluate.sh", "ebb wait --desktop 17"))
@ids_argument
@afterwards_options
@json_option
@master_option
def command(job_ids: tuple[str, ...], then: str | None, desktop: bool, as_json: bool, master: str | None) -> int:
    """Wait until jobs have finished; exit 0 if all completed, else 1. Ctrl-C detaches."""

    def report(job: client_pb2.Job) -> None:
        if not as_json:
            print(summary(job), flush=True)

    jobs = wait_for(master, job_ids, finished, report, drawn=not as_json)
    if as_json:
        print_json([job_facts(job) for job in jobs])
    afterwards(jobs, then, desktop)
    return OK if all(job.state == job_pb2.JOB_STATE_COMPLETED for job in jobs) else FAILED
