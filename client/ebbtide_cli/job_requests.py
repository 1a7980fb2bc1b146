"""Send a request for each of several jobs, report each result, and wait for the effect if the user asks for that."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import examples, ids_argument, json_option, master_option
from ebbtide_cli.describing.effects import Effective
from ebbtide_cli.describing.facts import Facts, job_facts
from ebbtide_cli.describing.jobs import finished, summary
from ebbtide_cli.errors import FAILED, OK, Failure, Unreachable
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import complain, print_json
from ebbtide_cli.watching import each_alone, wait_for

if TYPE_CHECKING:
    import grpc
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

Send = Callable[["ClientServiceStub", str], client_pb2.Job]
CameOf = Callable[[client_pb2.Job], tuple[str, int]]
"""Returns the line and the exit code for a job that was waited for."""

wait_option: Final = click.option("--wait", is_flag=True, help="Wait until the request has taken effect.")


def _summarised(job: client_pb2.Job) -> tuple[str, int]:
    return summary(job), OK


def request_verb(
    text: str,
    *calls: str,
    method: "Callable[[ClientServiceStub], grpc.UnaryUnaryMultiCallable[client_pb2.JobRequest, client_pb2.Job]]",
    effective: Effective,
    came_of: CameOf = _summarised,
) -> click.Command:
    """Make the command of a verb that needs only ids of jobs; ``text`` is its help, and ``calls`` are its examples."""

    @click.command(help=text, epilog=examples(*calls))
    @ids_argument
    @wait_option
    @json_option
    @master_option
    def command(job_ids: tuple[str, ...], wait: bool, as_json: bool, master: str | None) -> int:
        def send(stub: "ClientServiceStub", job_id: str) -> client_pb2.Job:
            return ask(method(stub), client_pb2.JobRequest(job_id=job_id))

        return grant(master, job_ids, send, effective, wait=wait, as_json=as_json, came_of=came_of)

    return command


def grant(
    master: str | None,
    job_ids: Sequence[str],
    send: Send,
    effective: Effective,
    *,
    wait: bool,
    as_json: bool,
    facts: Callable[[client_pb2.Job], Facts] = job_facts,
    came_of: CameOf = _summarised,
) -> int:
    """Send one request for each job and print the jobs, as JSON their ``facts``; return the worst exit code.

    A job that cannot be changed is reported, and does not keep the others from being changed.
    """
    code = OK
    accepted: dict[str, client_pb2.Job] = {}
    for job_id in dict.fromkeys(job_ids):
        try:
            with connected(master) as stub:
                accepted[job_id] = send(stub, job_id)
        except Unreachable:
            raise
        except Failure as failure:
            complain(failure.message)
            code = max(code, failure.code)
    jobs = list(accepted.values())
    if wait and jobs:
        jobs, waited_code = _wait(master, accepted, effective, came_of, drawn=not as_json)
        code = max(code, waited_code)
    came = {job.job_id: came_of(job) if wait else _summarised(job) for job in jobs}
    if as_json:
        print_json([facts(job) for job in jobs])
    for line, came_code in came.values():
        code = max(code, came_code)
        if not as_json:
            print(line)
    return code


def _wait(
    master: str | None, accepted: dict[str, client_pb2.Job], effective: Effective, came_of: CameOf, *, drawn: bool
) -> tuple[list[client_pb2.Job], int]:
    """Wait until the request has taken effect on each job, and on each task of an array; return the jobs then.

    A task that ended before, or whose exit code is not 0, is reported, because its array is printed as a whole.
    """
    with connected(master) as stub:
        before = {one.job_id: one for job in accepted.values() for one in each_alone(stub, job)}

    def came_true(job: client_pb2.Job) -> bool:
        return effective(job, before[job.job_id])

    due = [job_id for job_id, job in before.items() if not came_true(job)]
    waited = wait_for(master, due, lambda job: came_true(job) or finished(job), drawn=drawn) if due else []
    now, code = before | {job.job_id: job for job in waited}, OK
    for job in now.values():
        line, came_code = came_of(job)
        if not came_true(job):
            complain(f"{summary(job)} before it took effect")
            code = max(code, FAILED)
        elif came_code and job.job_id not in accepted:
            complain(line)
            code = max(code, came_code)
    with connected(master) as stub:
        return [now.get(id) or ask(stub.ShowJob, client_pb2.JobRequest(job_id=id)) for id in accepted], code
