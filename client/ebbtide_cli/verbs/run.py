"""``ebb run``: queue a command and follow it to its end."""

import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from ebbtide_core.model.choices import JobKind
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli import interrupts
from ebbtide_cli.channels.feeding import Feeder
from ebbtide_cli.channels.waiting import cancel, try_to_cancel
from ebbtide_cli.commands.verb import examples, master_option
from ebbtide_cli.describing.facts import state_of
from ebbtide_cli.describing.jobs import exit_status, finished, summary
from ebbtide_cli.errors import INTERRUPTED, OURS, Failure, Unreachable, code_is_of_job
from ebbtide_cli.logs.log_reading import output
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.submitting.command import SubmitCommand
from ebbtide_cli.submitting.interactive import interactive_spec, queue, with_input
from ebbtide_cli.submitting.job import job_options
from ebbtide_cli.submitting.piped import is_given
from ebbtide_cli.submitting.startable import check_start
from ebbtide_cli.terminal.output import StatusLine, complain
from ebbtide_cli.watching import watch_jobs

_NO_STDIN = "the master's version gives jobs no standard input: upgrade it, or add </dev/null to do without"


@click.command(
    cls=SubmitCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
    epilog=examples(
        "ebb run -- nvidia-smi",
        "ebb run --gpus 2 --launch ddp -- python train.py --epochs 1",
        "ebb run --cpu-only -- make test",
        "ebb run --be -- python sweep.py",
        "tail -n +2 metrics.csv | ebb run --cpu-only -- sort -t , -k 2",
    ),
)
@click.argument("argv", metavar="CMD...", nargs=-1, type=click.UNPROCESSED)
@job_options
@master_option
def command(argv: tuple[str, ...], master: str | None, **given: Any) -> int:
    """Queue a command, print its output, and return its exit code (128+n for a signal, 125 for a failure of ours).

    The job is trial-and-error and is not preempted, because somebody waits for it; with --be, or --suspend, it is like
    other jobs. Piped or redirected input becomes its standard input. That can be read once, so the job then has no
    second attempt (</dev/null: no input). Ctrl-C cancels the job, a second one kills it, a third one detaches. A reader
    of its output that goes away, such as head, cancels it, too.
    A lost connection does not end the job once it has all of its input.
    """
    with code_is_of_job():
        spec = interactive_spec(given, JobKind.COMMAND, argv)
        if reads := is_given():
            spec = with_input(spec)
        check_start(master, spec, waits=bool(spec.after or spec.begin_at))
        job_id = queue(master, spec)
        return _follow(master, job_id, Feeder(master, job_id) if reads else None)


def _follow(master: str | None, job_id: str, feeder: Feeder | None) -> int:
    try:
        with _cancelling(master, job_id):
            if not _wait(master, job_id, reads=feeder is not None):
                if feeder is not None:
                    feeder.start()
                request = client_pb2.ReadLogsRequest(job_id=job_id, follow=True)
                for _, data in output(master, request, reached=True):
                    _show(master, job_id, data)
            job = _end(master, job_id)
    except Unreachable as lost:
        how = "goes on" if feeder is None or feeder.has_sent_all else "fails soon, as it did not get all of its input"
        words = f"{lost.message}; job {job_id} {how}: 'ebb logs -f {job_id}' follows it, 'ebb cancel {job_id}' ends it"
        raise Unreachable(words) from None
    except KeyboardInterrupt:
        raise Failure(f"detached; job {job_id} ends by itself: 'ebb show {job_id}'", INTERRUPTED) from None
    status = exit_status(job, OURS)
    if status:
        if feeder is not None and feeder.trouble:
            complain(f"standard input: {feeder.trouble}")
        complain(summary(job))
    return status


def _wait(master: str | None, job_id: str, *, reads: bool) -> bool:
    """Show why the job waits until it runs; return whether it is over. Cancel a job that ``reads`` and cannot."""
    with StatusLine() as line:
        for job in watch_jobs(master, [job_id], reached=True):
            if reads and not job.spec.stdin:
                try_to_cancel(master, job_id, now=True)
                raise Failure(f"job {job_id} is cancelled: {_NO_STDIN}")
            if job.HasField("start_time") or finished(job):
                return finished(job) and not job.attempts
            line.show(f"job {job_id}", state_of(job), f"({job.reason})" if job.reason else "")
    return False


def _show(master: str | None, job_id: str, data: bytes) -> None:
    """Print what the job has printed; if that fails, the job ends, as its command would if it ran here."""
    try:
        _write(data)
    except OSError as error:
        why = f"its output cannot be written: {error.strerror}"
        try:
            cancel(master, job_id)
            fate = f"job {job_id} is cancelled: {why}"
        except Failure as failure:
            fate = "" if _is_over(master, job_id) else f"job {job_id} goes on, although {why}: {failure.message}"
        if not isinstance(error, BrokenPipeError):
            raise Failure(fate or f"job {job_id}: {why}") from None
        if fate:
            complain(fate)
        raise


def _write(data: bytes) -> None:
    """Write to stdout, and wait if a pipe is full that another program has set not to block."""
    rest = memoryview(data)
    while True:
        try:
            rest = rest[sys.stdout.buffer.write(rest) or 0 :]  # None: it is full, and has no buffer
            sys.stdout.buffer.flush()
            if not rest:
                return
        except BlockingIOError as full:
            rest = rest[full.characters_written :]
        select.select([], [sys.stdout], [])


def _is_over(master: str | None, job_id: str) -> bool:
    """Whether the job has ended; False if the master does not say."""
    try:
        with connected(master) as stub:
            return finished(ask(stub.ShowJob, client_pb2.JobRequest(job_id=job_id)))
    except Failure:
        return False


def _end(master: str | None, job_id: str) -> client_pb2.Job:
    for job in watch_jobs(master, [job_id], reached=True):
        if finished(job):
            return job
    raise Failure(f"job {job_id}: the master stopped telling about it")


@contextmanager
def _cancelling(master: str | None, job_id: str) -> Iterator[None]:
    """Let Ctrl-C cancel the job, and go on, because the job's last output is wanted, too."""

    def give_up(left: int) -> None:
        complain(f"cancelling job {job_id}; Ctrl-C again kills it" if left else f"killing job {job_id}")
        try_to_cancel(master, job_id, now=not left)

    with interrupts.handled_by(give_up, 2):
        yield
