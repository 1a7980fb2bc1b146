"""``ebb wait``: wait until jobs have finished."""

import click
from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.afterwards import afterwards, afterwards_options
from ebbtide_cli.errors import FAILED, OK
from ebbtide_cli.facts import job_facts
from ebbtide_cli.jobs import exit_status, finished, summary
from ebbtide_cli.output import print_json
from ebbtide_cli.verb import DURATION, examples, ids_argument, json_option, master_option
from ebbtide_cli.watching import in_time, wait_for


@click.command(
    epilog=examples(
        "ebb wait 17",
        "ebb wait 17 18 19 && ./evaluate.sh",
        "ebb wait --any 17 18",
        "ebb wait --timeout 30m 17 && ./evaluate.sh",
        "ebb wait --desktop 17",
    )
)
@ids_argument
@click.option("--any", "any_of_them", is_flag=True, help="Return as soon as one of the jobs has finished.")
@click.option("--timeout", metavar="TIME", type=DURATION, help="Give up after this time, with exit code 124.")
@afterwards_options
@json_option
@master_option
def command(
    job_ids: tuple[str, ...],
    any_of_them: bool,
    timeout: float | None,
    then: str | None,
    desktop: bool,
    as_json: bool,
    master: str | None,
) -> int:
    """Wait until jobs have finished. Ctrl-C detaches and changes nothing.

    Exit code 0 if all of them completed, else that of the first one, in the order given, that did not: 128 plus the
    signal if a signal ended it, 1 if it has no exit code.
    """

    def report(job: client_pb2.Job) -> None:
        if not as_json:
            print(summary(job), flush=True)

    enough = 1 if any_of_them else None
    with in_time(timeout, job_ids):
        jobs = wait_for(master, job_ids, finished, report, drawn=not as_json, enough=enough)
    if as_json:
        print_json([job_facts(job) for job in jobs])
    afterwards(jobs, then, desktop)
    failed = next((job for job in jobs if job.state != job_pb2.JOB_STATE_COMPLETED), None)
    return OK if failed is None else exit_status(failed, FAILED)
