"""``ebb logs``: what a job printed, over all its attempts."""

import re
import sys
from collections import Counter
from collections.abc import Iterator

import click
from ebbtide_protos.v1 import client_pb2
from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

from ebbtide_cli.connection import ask, connected
from ebbtide_cli.connection import follow as follow_stream
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.escaped import Escaped
from ebbtide_cli.pasts import since_option, tail_option
from ebbtide_cli.prefixed import Prefixed
from ebbtide_cli.tidy import Tidy
from ebbtide_cli.verb import examples, id_argument, master_option
from ebbtide_cli.watching import detaching


@click.command(
    epilog=examples(
        "ebb logs 17",
        "ebb logs -f @",
        "ebb logs --tail 20 17",
        "ebb logs --since 10m 17.0-9",
        "ebb logs --attempt 2 17 | grep loss",
        "ebb logs --node right 17",
        "ebb logs --rank 1 17",
        "ebb logs --tidy 17 | tee train.log",
    )
)
@id_argument
@click.option("-f", "--follow", is_flag=True, help="Go on as the job prints; Ctrl-C detaches.")
@tail_option
@since_option
@click.option("--attempt", type=click.IntRange(1, 2**31 - 1), help="Only this attempt (default: all).")
@click.option("--node", default="", metavar="NAME", help="What was printed there (default: on the job's first node).")
@click.option("--rank", type=click.IntRange(0, 2**31 - 1), help="Only what this rank printed (default: all of a node).")
@click.option("--tidy", is_flag=True, help="Of lines that are written over and over (progress bars), only the last.")
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
) -> None:
    """Print a job's output, or one after the other what the tasks of an array printed, each line with its task's id.

    It is printed byte for byte, but to a terminal nothing that this would obey, colours excepted. A line on stderr
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
    if tasks and follow:
        raise Failure(f"logs: --follow: follows one task of an array, such as {tasks[0]}", USAGE)
    with detaching([job_id]):
        for task in tasks:
            request.job_id = task
            _print_log(master, request, tidy=tidy, prefix=f"{task}: ")
        if not tasks:
            _print_log(master, request, tidy=tidy)


def _tasks(master: str | None, job_id: str) -> list[str]:
    """The ids of the tasks that ``job_id`` names; none if it is one job."""
    if re.fullmatch(r"[0-9]+\.[0-9]+", job_id):
        return []
    with connected(master) as stub:
        if not ask(stub.ShowJob, client_pb2.JobRequest(job_id=job_id)).HasField("tasks"):
            return []
        return [task.job_id for task in ask(stub.ListJobs, client_pb2.ListJobsRequest(job_ids=[job_id])).jobs]


def _print_log(master: str | None, request: client_pb2.ReadLogsRequest, *, tidy: bool, prefix: str = "") -> None:
    current, line, lines = 0, Tidy(), Prefixed(prefix)
    escaped = Escaped() if sys.stdout.isatty() else None
    for number, data in output(master, request):
        if current not in (0, number):
            _print(lines.feed(line.end()) + lines.end(), escaped)
            print(f"{prefix}--- attempt {number} ---", file=sys.stderr, flush=True)
        current = number
        _print(lines.feed(line.feed(data) if tidy else data), escaped)
    _print(lines.feed(line.end()) + lines.end(), escaped)
    if escaped:
        print(escaped.end(), end="", flush=True)


def _print(data: bytes, escaped: Escaped | None) -> None:
    if escaped:
        print(escaped.feed(data), end="", flush=True)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def output(master: str | None, request: client_pb2.ReadLogsRequest) -> Iterator[tuple[int, bytes]]:
    """Yield (attempt, bytes) without repeating anything when the stream had to be opened again."""
    printed: Counter[int] = Counter()  # of each attempt, up to which offset

    def read(stub: ClientServiceStub) -> Iterator[client_pb2.LogChunk]:
        again: Counter[int] = Counter()
        asked, last = client_pb2.ReadLogsRequest(), max(printed, default=0)
        asked.CopyFrom(request)
        if printed:  # what is not wanted of it is known by now, and what was printed meanwhile is
            asked.tail, asked.since = 0, 0.0
        for chunk in stub.ReadLogs(asked):
            if chunk.attempt < last:
                continue
            if not chunk.next:  # an older master does not say where it stands
                chunk.offset, chunk.next = again[chunk.attempt], again[chunk.attempt] + len(chunk.data)
            again[chunk.attempt] = chunk.next
            known = printed[chunk.attempt]
            if chunk.next <= known:
                chunk.data = b""
            elif chunk.offset + len(chunk.data) == chunk.next:  # else it stands for what is not kept
                chunk.data = chunk.data[max(0, known - chunk.offset) :]
            yield chunk

    for chunk in follow_stream(master, read):
        printed[chunk.attempt] = max(printed[chunk.attempt], chunk.next)
        if chunk.data:
            yield chunk.attempt, chunk.data
