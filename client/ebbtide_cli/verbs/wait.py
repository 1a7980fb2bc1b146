"""``ebb wait``: wait until jobs have finished."""

import os
import shutil
import subprocess
from collections.abc import Sequence

import click
from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.commands.verb import DURATION, examples, ids_argument, json_option, master_option
from ebbtide_cli.describing.facts import job_facts, state_of
from ebbtide_cli.describing.jobs import exit_status, finished, summary
from ebbtide_cli.errors import FAILED, OK
from ebbtide_cli.terminal.output import complain, print_json
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
@click.option(
    "--then",
    metavar="COMMAND",
    help="Run this shell command afterwards; EBB_JOBS and EBB_STATES say which jobs ended, and how.",
)
@click.option("--desktop", is_flag=True, help="Show a notification on this desktop (notify-send).")
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
    _afterwards(jobs, then, desktop)
    failed = next((job for job in jobs if job.state != job_pb2.JOB_STATE_COMPLETED), None)
    return OK if failed is None else exit_status(failed, FAILED)


def _afterwards(jobs: Sequence[client_pb2.Job], then: str | None, desktop: bool) -> None:
    """Notify the desktop and run ``then``; a failure of either is printed, and does not count as a job's failure."""
    if desktop:
        _tell(["notify-send", "--app-name=ebb", "Ebbtide", "\n".join([summary(job) for job in jobs])])
    if then is not None:
        ids, states = " ".join([job.job_id for job in jobs]), " ".join([state_of(job) for job in jobs])
        done = subprocess.run(then, shell=True, env={**os.environ, "EBB_JOBS": ids, "EBB_STATES": states}, check=False)
        if done.returncode:
            complain(f"wait: --then: exit code {done.returncode}")


def _tell(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        complain(f"wait: --desktop: {command[0]} is not installed here")
        return
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        complain(f"wait: --desktop: {command[0]} failed: is there a desktop?")
