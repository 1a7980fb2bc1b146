"""Wait for a job that somebody wants to use: it shows why it waits, and Ctrl-C gives it up."""

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.connection import ask, connected
from ebbtide_cli.errors import FAILED, INTERRUPTED, Failure
from ebbtide_cli.facts import state_of
from ebbtide_cli.jobs import finished, summary
from ebbtide_cli.output import StatusLine
from ebbtide_cli.watching import watch_jobs


def wait_until_it_runs(master: str | None, job_id: str) -> client_pb2.Job:
    """The job once it runs; one that ended before that is a failure, and Ctrl-C cancels it."""
    try:
        with StatusLine() as line:
            for job in watch_jobs(master, [job_id]):
                if job.state == job_pb2.JOB_STATE_RUNNING:
                    return job
                if finished(job):
                    raise Failure(f"{summary(job)} before it ran", FAILED)
                why = f"({job.reason})" if job.reason else ""
                line.show(f"job {job_id}", state_of(job), why, "Ctrl-C cancels it")
    except KeyboardInterrupt:
        cancel(master, job_id)
        raise Failure(f"job {job_id} cancelled before it ran", INTERRUPTED) from None
    raise Failure(f"job {job_id}: the master stopped telling about it")


def cancel(master: str | None, job_id: str, *, now: bool = False) -> None:
    """Give the job up."""
    with connected(master) as stub:
        ask(stub.Cancel, client_pb2.CancelRequest(job_id=job_id, now=now))
