"""Wait for a job that its user wants to use: show why the job waits, and let Ctrl-C cancel it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli import interrupts
from ebbtide_cli.describing.facts import state_of
from ebbtide_cli.describing.jobs import finished, summary
from ebbtide_cli.errors import FAILED, INTERRUPTED, Failure, TooFast
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import StatusLine, complain
from ebbtide_cli.watching import watch_jobs


def wait_until_it_runs(master: str | None, job_id: str) -> client_pb2.Job:
    """Return the job once it runs; raise `Failure` if it ends before that. Ctrl-C cancels it."""
    with StatusLine() as line, _cancelling(master, job_id) as given_up:
        for job in watch_jobs(master, [job_id]):
            if finished(job) and given_up.is_set():
                raise Failure(f"job {job_id} cancelled before it ran", INTERRUPTED)
            if finished(job):
                raise Failure(f"{summary(job)} before it ran", FAILED)
            if job.state == job_pb2.JOB_STATE_RUNNING and not given_up.is_set():
                return job
            why = f"({job.reason})" if job.reason else ""
            line.show(f"job {job_id}", state_of(job), why, "Ctrl-C cancels it")
    raise Failure(f"job {job_id}: the master stopped telling about it")


@contextmanager
def _cancelling(master: str | None, job_id: str) -> Iterator[threading.Event]:
    """Let the first Ctrl-C cancel the job and set the event, while the block watches the job end. A second ends ebb."""
    given_up = threading.Event()

    def give_up(left: int) -> None:
        given_up.set()
        try_to_cancel(master, job_id)

    with interrupts.handled_by(give_up, 1):
        yield given_up


def try_to_cancel(master: str | None, job_id: str, *, now: bool = False) -> None:
    """Cancel the job; print a failure instead of raising it."""
    try:
        cancel(master, job_id, now=now)
    except Failure as failure:
        complain(failure.message)


def cancel(master: str | None, job_id: str, *, now: bool = False) -> None:
    """Ask the master to cancel the job, again for as long as it has too much to do for this user."""
    while True:
        try:
            with connected(master) as stub:
                ask(stub.Cancel, client_pb2.CancelRequest(job_id=job_id, now=now))
            return
        except TooFast as error:
            time.sleep(error.wait_s)
