"""Follow jobs until a condition holds for them; Ctrl-C stops following and changes nothing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ebbtide_protos.v1 import client_pb2

from ebbtide_cli import interrupts
from ebbtide_cli.describing.facts import state_of
from ebbtide_cli.describing.jobs import done as share_done
from ebbtide_cli.describing.jobs import finished, progress_words
from ebbtide_cli.errors import EXPIRED, INTERRUPTED, Failure, Unreachable
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.connection import ask, follow
from ebbtide_cli.terminal.output import StatusLine
from ebbtide_cli.values import format_duration

if TYPE_CHECKING:
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub


def watch_jobs(
    master: str | Address | None, job_ids: Sequence[str], *, reached: bool = False
) -> Iterator[client_pb2.Job]:
    """Yield the jobs now, then each again whenever it changes, without end and across restarts of the master.

    If the master was ``reached`` a moment ago, even the first connection may fail and is tried again.
    """

    def read(stub: "ClientServiceStub") -> Iterator[client_pb2.Job]:
        yield from stub.WatchJobs(client_pb2.WatchJobsRequest(job_ids=job_ids))
        raise Unreachable("the master stopped telling about the jobs")

    return follow(master, read, reached=reached)


def wait_for(
    master: str | None,
    job_ids: Sequence[str],
    done: Callable[[client_pb2.Job], bool],
    seen: Callable[[client_pb2.Job], None] = lambda job: None,
    *,
    drawn: bool = True,
    enough: int | None = None,
) -> list[client_pb2.Job]:
    """Wait until ``done`` holds for each job, or for ``enough`` of them; return these jobs as they were then.

    The jobs are in the order of ``job_ids``. ``seen`` is called for each job as soon as it is done. Meanwhile, if
    ``drawn``, a terminal shows the state of the jobs.
    """
    ended: dict[str, client_pb2.Job] = {}
    wanted = set(job_ids)
    with detaching(job_ids), StatusLine(wanted=drawn) as line:
        for job in watch_jobs(master, sorted(wanted)):
            if job.job_id in wanted - ended.keys():
                if done(job):
                    line.clear()
                    ended[job.job_id] = job
                    seen(job)
                else:
                    line.show(*_status(job, len(ended), len(wanted)), done=share_done(job))
            if len(ended) == (enough or len(wanted)):
                break
    return [ended[job_id] for job_id in dict.fromkeys(job_ids) if job_id in ended]


def each_alone(stub: "ClientServiceStub", job: client_pb2.Job) -> list[client_pb2.Job]:
    """Return the job; of an array, the tasks that have not ended, each as it is now."""
    if not job.HasField("tasks"):
        return [job]
    listed = ask(stub.ListJobs, client_pb2.ListJobsRequest(job_ids=[job.job_id])).jobs
    return [task for task in listed if not finished(task)]


@contextmanager
def in_time(seconds: float | None, job_ids: Sequence[str]) -> Iterator[None]:
    """Raise `Failure` if the wait in the block takes longer than ``seconds``; None: never."""

    if seconds is None:
        yield
        return
    noun = "job" if len(job_ids) == 1 else "jobs"
    words = f"after {format_duration(seconds)} still waiting for {noun} {_some(job_ids)}"
    with interrupts.after(seconds, Failure(words, EXPIRED)):
        yield


@contextmanager
def detaching(job_ids: Sequence[str]) -> Iterator[None]:
    """Let Ctrl-C end the wait and nothing else."""
    try:
        yield
    except KeyboardInterrupt:
        noun = "job" if len(job_ids) == 1 else "jobs"
        raise Failure(
            f"detached; {noun} {_some(job_ids)} not changed ('ebb cancel' would end it)", INTERRUPTED
        ) from None


def _some(job_ids: Sequence[str]) -> str:
    return ", ".join(job_ids[:5]) + (", …" if len(job_ids) > 5 else "")


def _status(job: client_pb2.Job, ended: int, wanted: int) -> Iterator[str]:
    """Yield the words of a job's state; if several jobs are awaited, also how many are done."""
    if wanted > 1:
        yield f"{ended} of {wanted} done;"
    yield f"job {job.job_id}"
    yield state_of(job)
    if job.HasField("progress"):
        yield f"step {progress_words(job)}"
    if job.progress.HasField("loss"):
        yield f"loss {job.progress.loss:.4g}"
    if job.reason:
        yield f"({job.reason})"
