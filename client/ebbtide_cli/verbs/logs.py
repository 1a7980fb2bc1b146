"""``ebb logs``: print a job's output of all its attempts."""

import re
import sys

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.time_options import since_option, tail_option
from ebbtide_cli.commands.verb import examples, id_argument, master_option
from ebbtide_cli.errors import FAILED, OK, NodeAway
from ebbtide_cli.logs.log_reading import LogLines, output
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import complain, print_attempt
from ebbtide_cli.watching import detaching


@click.command(
    epilog=examples(
        "ebb logs 17",
        "ebb logs -f @",
        "ebb logs -f 17.0-9",
        "ebb logs --tail 20 17",
        "ebb logs --since 10m 17.0-9",
        "ebb logs --attempt 2 17 | grep loss",
        "ebb logs --node right 17",
        "ebb logs --rank 1 17",
        "ebb logs --tidy 17 | tee train.log",
    )
)
@id_argument
@click.option("-f", "--follow", is_flag=True, help="Print new output as it comes; Ctrl-C detaches.")
@tail_option
@since_option
@click.option(
    "--attempt", type=click.IntRange(1, 2**31 - 1), help="Print the output of this attempt only (default: of all)."
)
@click.option(
    "--node", default="", metavar="NAME", help="Print the output on this node of the job (default: on its first)."
)
@click.option(
    "--rank",
    type=click.IntRange(0, 2**31 - 1),
    help="Print the output of this rank only (default: of all ranks on the node).",
)
@click.option("--tidy", is_flag=True, help="Print only the last state of lines that are overwritten (progress bars).")
@master_option
def command(
    job_id: str,
    follow: bool,
    tail: int | None,
    since: float | None,
    attempt: int | None,
    node: str,
    rank: int | None,
    tidy: bool,
    master: str | None,
) -> int:
    """Print a job's output, or the output of an array's tasks one after the other, each line with its task's id.

    With -f, the lines of an array's tasks are printed as they come, until all tasks have ended. 16 tasks are followed
    at a time; the next task's output is printed, from its beginning, when one of those has ended or is suspended.

    Output is printed byte for byte, except that a terminal gets no control sequences but colours. A line on stderr
    marks where a new attempt begins. A job's lines have no times: --since may begin some seconds too early, never late.
    """
    request = client_pb2.ReadLogsRequest(
        job_id=job_id,
        attempt=attempt or 0,
        follow=follow,
        node=node,
        rank=rank,
        tail=tail or 0,
        since=since or 0.0,
    )
    tasks = _tasks(master, job_id)
    with detaching([job_id]):
        if tasks and follow:
            from ebbtide_cli.logs.following import follow_tasks

            return OK if follow_tasks(master, request, tasks, tidy=tidy) else FAILED
        if not tasks:
            _print_log(master, request, tidy=tidy)
        return max([_print_task(master, request, task, tidy=tidy) for task in tasks], default=OK)


def _tasks(master: str | None, job_id: str) -> list[str]:
    """Return the ids of the tasks that ``job_id`` names; empty if it is one job."""
    if re.fullmatch(r"[0-9]+\.[0-9]+", job_id):
        return []
    with connected(master) as stub:
        if not ask(stub.ShowJob, client_pb2.JobRequest(job_id=job_id)).HasField("tasks"):
            return []
        return [task.job_id for task in ask(stub.ListJobs, client_pb2.ListJobsRequest(job_ids=[job_id])).jobs]


def _print_task(master: str | None, request: client_pb2.ReadLogsRequest, task: str, *, tidy: bool) -> int:
    """Print the log of one task, or say why its node cannot be asked; return the exit code."""
    request.job_id = task
    try:
        _print_log(master, request, tidy=tidy, prefix=f"{task}: ")
    except NodeAway as away:
        complain(f"{task}: {away.message}")
        return FAILED
    return OK


def _print_log(master: str | None, request: client_pb2.ReadLogsRequest, *, tidy: bool, prefix: str = "") -> None:
    lines = LogLines(prefix, tidy=tidy)
    try:
        for number, data in output(master, request):
            if lines.is_next(number):
                _print(lines.end())
                print_attempt(number, prefix)
            _print(lines.feed(data))
    finally:
        _print(lines.close())


def _print(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
