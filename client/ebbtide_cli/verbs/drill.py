"""``ebb drill``: suspend and resume a job on purpose, and say whether it can be trusted to suspend."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import DURATION, examples, id_argument, json_option, master_option
from ebbtide_cli.describing.facts import state_of
from ebbtide_cli.describing.jobs import done as share_done
from ebbtide_cli.describing.jobs import progress_words
from ebbtide_cli.drilling import DrillFindings, Verdict, came_back, find, is_over, reports_steps, same_attempt
from ebbtide_cli.errors import FAILED, INTERRUPTED, OK, Failure
from ebbtide_cli.masters.connection import ask, connected, follow
from ebbtide_cli.terminal.output import StatusLine, print_json
from ebbtide_cli.terminal.text import printable
from ebbtide_cli.values import format_duration
from ebbtide_cli.wire.status import CallFailed, CallStatus

if TYPE_CHECKING:
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

Reply = TypeVar("Reply")

PATIENCE_S: Final = 300.0
"""Seconds that a job may take to resume and report its first step, unless ``--timeout`` says otherwise."""
LOG_S: Final = 10.0
"""Seconds that a job that reports no steps may take to print its first line."""
LINES: Final = 3
"""Lines of the log that are shown from before and from after the drill."""
TAIL_BYTES: Final = 4096
PARTS: Final = {
    "save": "saved after",
    "exit": "ended after",
    "free": "GPU free after",
    "queue": "waited for room",
    "start": "started in",
    "first_progress": "at work again after",
    "total": "away in all",
}


@click.command(epilog=examples("ebb drill 17", "ebb drill --timeout 20m 17", "ebb drill --json 17 | jq .verdict"))
@id_argument
@click.option(
    "--timeout",
    metavar="DURATION",
    type=DURATION,
    help="Give up after this time (default: the job's grace period and 5m).",
)
@json_option
@master_option
def command(job_id: str, timeout: float | None, as_json: bool, master: str | None) -> int:
    """Suspend a running job and resume it at once, to test whether it saves, and continues from where it was.

    The job keeps its place unless a policy preempts it, and it resumes by itself, also after Ctrl-C. Exit code 0 if the
    test shows that suspension works, 1 if it does not, or shows nothing.
    """
    began = time.monotonic()
    with connected(master) as stub:
        asked = ask(stub.Drill, client_pb2.JobRequest(job_id=job_id))
    deadline = began + (asked.spec.grace_s + PATIENCE_S if timeout is None else timeout)
    try:
        job = _watch(master, asked, deadline, drawn=not as_json)
        findings = find(job, asked, _log(master, job, asked, deadline))
    except KeyboardInterrupt:
        raise Failure(f"drill left; job {job_id} comes back by itself", INTERRUPTED) from None
    if as_json:
        print_json(findings.facts(job))
    else:
        _print(job, findings)
    return OK if findings.verdict is Verdict.TRUSTWORTHY else FAILED


def _watch(master: str | None, asked: client_pb2.Job, deadline: float, *, drawn: bool) -> client_pb2.Job:
    """Follow the job until it has shown what it can, or until ``deadline``."""
    request, job = client_pb2.WatchJobsRequest(job_ids=[asked.job_id]), asked
    with StatusLine(wanted=drawn) as line:
        for job in _until(master, deadline, lambda stub, left: stub.WatchJobs(request, timeout=left)):
            if is_over(job, asked):
                break
            progress = f"step {progress_words(job)}" if job.HasField("progress") else ""
            words = (f"job {job.job_id}", state_of(job), progress, f"({job.reason})")
            line.show(*filter(None, words), done=share_done(job))
    return job


def _until(
    master: str | None, deadline: float, open_stream: "Callable[[ClientServiceStub, float], Iterator[Reply]]"
) -> Iterator[Reply]:
    """Yield from a stream until ``deadline``, across restarts of the master."""

    def read(stub: "ClientServiceStub") -> Iterator[Reply]:
        try:
            yield from open_stream(stub, max(0.1, deadline - time.monotonic()))
        except CallFailed as error:
            if error.status is not CallStatus.DEADLINE_EXCEEDED:
                raise

    return follow(master, read)


def _log(master: str | None, job: client_pb2.Job, asked: client_pb2.Job, deadline: float) -> dict[str, str]:
    """Return, for a job that reports no steps, the last lines before the drill and the first ones after it."""
    if reports_steps(job, asked) or not came_back(job, asked) or same_attempt(job, asked):
        return {}
    until = min(deadline, time.monotonic() + LOG_S)
    tail, head = b"", b""
    for data in _attempt_log(master, job.job_id, asked.attempt, until, follows=False):
        tail = (tail + data)[-TAIL_BYTES:]
    for data in _attempt_log(master, job.job_id, asked.attempt + 1, until, follows=True):
        head = (head + data)[:TAIL_BYTES]
        if b"\n" in head:
            break
    before = tail.decode(errors="replace").splitlines()[-LINES:]
    after = head.decode(errors="replace").splitlines()[:LINES]
    return {"before": "\n".join(before), "after": "\n".join(after)}


def _attempt_log(master: str | None, job_id: str, attempt: int, until: float, *, follows: bool) -> Iterator[bytes]:
    request = client_pb2.ReadLogsRequest(job_id=job_id, attempt=attempt, follow=follows)
    for chunk in _until(master, until, lambda stub, left: stub.ReadLogs(request, timeout=left)):
        yield chunk.data


def _print(job: client_pb2.Job, findings: DrillFindings) -> None:
    from ebbtide_cli.terminal.drawing import print_columns

    steps = findings.steps
    rows = [("checkpointed", f"{findings.checkpointed}: {findings.why}")]
    rows += [(PARTS[name], format_duration(seconds)) for name, seconds in findings.parts_s.items()]
    named = (
        ("left off at step", steps.before),
        ("checkpoint of step", steps.checkpoint),
        ("went on at step", steps.after),
    )
    rows += [(title, str(step)) for title, step in named if step is not None]
    if findings.repeated_cpu_s is not None:
        again = f"{format_duration(findings.repeated_cpu_s)} of CPU time went to what its script had done before"
        rows.append(("done again", f"{again}: have it find out what is done ('ebb docs stopping')"))
    for when, text in findings.log.items():
        rows += [(f"log {when}", printable(line)) for line in text.splitlines() or ["(nothing printed)"]]
    print_columns(rows)
    print(printable(f"Job {job.job_id}: {findings.verdict.value}: {findings.because}."))
    if findings.advice:
        print(findings.advice)
