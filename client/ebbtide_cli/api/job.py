"""A job as its user sees it from Python, and an array of jobs."""

from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload
from warnings import warn

from ebbtide_core.model.choices import parts
from ebbtide_protos.spec import parts_to_share
from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.api import functions
from ebbtide_cli.api.failing import JobFailed
from ebbtide_cli.api.options import Count, text_of
from ebbtide_cli.api.waiting import Waits
from ebbtide_cli.describing import effects
from ebbtide_cli.describing.facts import Facts, job_facts, state_of
from ebbtide_cli.describing.jobs import finished, is_unsaved, left, saved_words, summary
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.logs.log_reading import output
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.values import GpuRange, parse_gpus
from ebbtide_cli.watching import each_alone, watch_jobs

if TYPE_CHECKING:
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

Result = TypeVar("Result")
Reply = TypeVar("Reply")

LOG_LINES = 20
"""Lines of the log that the error of a failed job shows."""


class JobProgress(NamedTuple):
    """What a job reported last: ``step`` of ``total`` steps are done (None: it did not say), and its metrics."""

    step: int
    total: int | None
    loss: float | None
    metrics: dict[str, float]


class Link:
    """The master that jobs are at, and what is waited for there."""

    def __init__(self, master: str | Address) -> None:
        self.master = master
        self.waits = Waits(master)

    def ask(self, work: "Callable[[ClientServiceStub], Reply]") -> Reply:
        """Ask the master. Raises `Failure`."""
        with connected(self.master) as stub:
            return work(stub)


class Job(Generic[Result]):
    """A job of the cluster, and its ``result`` if it calls a function. Every method may raise `Failure`.

    It outlives this object and this process: `Cluster.job` finds it again by its ``id``, `Cluster.jobs` by its name.
    """

    def __init__(self, link: Link, job_id: str, folder: Path | None) -> None:
        self.id = job_id
        self._link = link
        self._folder = folder

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def __str__(self) -> str:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and (self.id, self._link.master) == (other.id, other._link.master)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def state(self) -> str:
        """The state now, such as ``RUNNING``; for an array, what its tasks come to together."""
        return state_of(self._show())

    @property
    def reason(self) -> str:
        """Why the job is in its state, in words."""
        return self._show().reason

    @property
    def name(self) -> str:
        """The job's name."""
        return self._show().spec.name

    @property
    def progress(self) -> JobProgress | None:
        """What the job reported last with `ebbtide.Job.report`; None if it has reported nothing."""
        return progress_of(self._show())

    def facts(self) -> Facts:
        """Return all facts on the job, as ``ebb show --json`` prints them (docs/schema.json)."""
        return job_facts(self._show())

    def done(self) -> bool:
        """Return whether the job has ended for good."""
        return finished(self._show())

    def wait(self, timeout: float | None = None) -> str:
        """Wait until the job has ended, and return its state. Raises TimeoutError after ``timeout`` seconds."""
        return state_of(self._ended(timeout))

    def result(self, timeout: float | None = None) -> Result:
        """Wait until the job has ended, and return what its function returned; None if it is a command.

        Raises what the function raised, with the traceback from the job as its cause. Raises `JobFailed` if the job
        failed otherwise, CancelledError if it was cancelled, and TimeoutError after ``timeout`` seconds.
        """
        return self._outcome(self._ended(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does, and return what it would raise; None if it would return."""
        job = self._ended(timeout)
        try:
            self._outcome(job)
        except (Exception, CancelledError) as error:  # noqa: BLE001 - it is what was asked for
            return error
        return None

    def suspend(self, *, wait: bool = False, timeout: float | None = None) -> None:
        """Let the job save within its grace period, and free its GPUs until `resume`.

        With ``wait`` return when its GPUs are free, and warn if it lost work. Raises `Failure` if it ended before.
        """
        accepted = self._request("Suspend")
        for job in self._effect(accepted, effects.suspended, timeout) if wait else ():
            if is_unsaved(job) and (newest := left(job)) is not None:
                warn(f"{summary(job)}; {saved_words(newest)}", RuntimeWarning, stacklevel=2)

    def resume(self, *, wait: bool = False, timeout: float | None = None) -> None:
        """Let the job go on from its newest checkpoint as soon as GPUs are free; with ``wait``, return when it runs."""
        accepted = self._request("Resume")
        if wait:
            self._effect(accepted, effects.resumed, timeout)

    def resize(self, gpus: Count, *, wait: bool = False, timeout: float | None = None) -> None:
        """Let the job save and go on with another number of GPUs, or a range of it: ``4``, ``(1, 8)``."""
        wanted = _gpus(gpus)
        low, high = parts_to_share(parts(wanted.low)), parts_to_share(parts(wanted.high))
        request = client_pb2.ResizeRequest(job_id=self.id, gpus_min=low, gpus_max=high)
        accepted = self._link.ask(lambda stub: ask(stub.Resize, request))
        if wait:
            self._effect(accepted, effects.resized(wanted), timeout)

    def cancel(self, *, now: bool = False, wait: bool = False, timeout: float | None = None) -> None:
        """End the job for good, after its grace period or at once (``now``)."""
        request = client_pb2.CancelRequest(job_id=self.id, now=now)
        accepted = self._link.ask(lambda stub: ask(stub.Cancel, request))
        if wait:
            self._effect(accepted, effects.cancelled, timeout)

    def remove(self) -> None:
        """Let the master forget the job, which has to be finished, with its logs, its checkpoints and its result."""
        self._link.ask(lambda stub: functions.remove(stub, self.id))

    def logs(self, *, tail: int = 0, attempt: int = 0, rank: int | None = None, node: str = "") -> str:
        """Return what the job has printed until now, in all attempts or one; with ``tail`` the last so many lines."""
        return "".join(self._read_logs(follow=False, tail=tail, attempt=attempt, rank=rank, node=node))

    def follow(self, *, tail: int = 0, rank: int | None = None, node: str = "") -> Iterator[str]:
        """Yield what the job prints, as it comes, until the job has ended."""
        return self._read_logs(follow=True, tail=tail, attempt=0, rank=rank, node=node)

    def watch(self) -> Iterator[Facts]:
        """Yield the facts on the job now, and whenever something changes, progress too, until the job has ended."""
        for job in watch_jobs(self._link.master, [self.id], reached=True):
            yield job_facts(job)
            if finished(job):
                return

    def _show(self) -> client_pb2.Job:
        return self._link.ask(lambda stub: ask(stub.ShowJob, client_pb2.JobRequest(job_id=self.id)))

    def _request(self, method: str) -> client_pb2.Job:
        request = client_pb2.JobRequest(job_id=self.id)
        job: client_pb2.Job = self._link.ask(lambda stub: ask(getattr(stub, method), request))
        return job

    def _ended(self, timeout: float | None) -> client_pb2.Job:
        job = self._show()
        return job if finished(job) else awaited(self._link.waits.until(self.id), timeout, self.id)

    def _effect(
        self, accepted: client_pb2.Job, effective: effects.Effective, timeout: float | None
    ) -> list[client_pb2.Job]:
        """Wait until a request has taken effect, on each task of an array. Raises `Failure` if one ended before."""

        def begun(before: client_pb2.Job) -> Future[client_pb2.Job]:
            return self._link.waits.until(before.job_id, lambda job: effective(job, before) or finished(job))

        waits = {begun(before): before for before in self._link.ask(lambda stub: each_alone(stub, accepted))}
        try:
            jobs = [(future.result(), waits[future]) for future in as_completed(waits, timeout)]
        except TimeoutError:
            raise TimeoutError(f"after {timeout} s still waiting for job {self.id}") from None
        finally:
            for future in waits:
                future.cancel()
        for job, before in jobs:
            if not effective(job, before):
                raise Failure(f"{summary(job)} before it took effect")
        return [job for job, _ in jobs]

    def _outcome(self, job: client_pb2.Job) -> Result:
        """Return what this job, which has ended, came to, or raise it."""
        if job.state == job_pb2.JOB_STATE_CANCELLED:
            raise CancelledError(summary(job))
        try:
            if self._folder is not None:
                value: Result = functions.outcome(self._folder, job)
                return value
            if job.state != job_pb2.JOB_STATE_COMPLETED:
                raise JobFailed(summary(job), job.job_id)
            if not job.spec.command:
                raise Failure(f"job {job.job_id} is another user's: what it came to is not shown")
        except JobFailed as error:
            self._add_log(error)
            raise
        nothing: Any = None
        return nothing  # type: ignore[no-any-return]

    def _add_log(self, error: JobFailed) -> None:
        """Let the error show the end of the log, if that can be read."""
        try:
            text = self.logs(tail=LOG_LINES)
        except Failure as unread:
            error.add_note(f"its log cannot be read: {unread.message}")
            return
        if text:
            error.add_note(f"the end of its log:\n{text.rstrip()}")

    def _read_logs(self, *, follow: bool, tail: int, attempt: int, rank: int | None, node: str) -> Iterator[str]:
        request = client_pb2.ReadLogsRequest(
            job_id=self.id, follow=follow, tail=tail, attempt=attempt, rank=rank, node=node
        )
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        for _, data in output(self._link.master, request):
            if text := decoder.decode(data):
                yield text
        if text := decoder.decode(b"", final=True):
            yield text


class JobArray(Job[list[Result]], Sequence[Job[Result]]):
    """The tasks of an array, in the order of their indices. Its result is the list of theirs.

    What is asked of it is asked of all tasks at once, and granted if one of them can grant it.
    """

    def __init__(self, link: Link, job_id: str, folder: Path | None, indices: Sequence[int]) -> None:
        super().__init__(link, job_id, folder)
        array = job_id.partition(".")[0]
        self._tasks: list[Job[Result]] = [Job(link, f"{array}.{index}", folder) for index in indices]

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int) -> Job[Result]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Job[Result]]: ...
    def __getitem__(self, index: int | slice) -> Job[Result] | list[Job[Result]]:
        return self._tasks[index]

    def __eq__(self, other: object) -> bool:
        return Job.__eq__(self, other)

    def __hash__(self) -> int:
        return Job.__hash__(self)

    def as_completed(self, timeout: float | None = None) -> Iterator[Job[Result]]:
        """Yield each task as soon as it has ended. Raises TimeoutError after ``timeout`` seconds."""
        waits = {self._link.waits.until(task.id): task for task in self._tasks}
        try:
            for future in as_completed(waits, timeout):
                future.result()
                yield waits[future]
        except TimeoutError:
            raise TimeoutError(f"after {timeout} s still waiting for tasks of job {self.id}") from None
        finally:
            for future in waits:
                future.cancel()

    def logs(self, *, tail: int = 0, attempt: int = 0, rank: int | None = None, node: str = "") -> str:
        """Return what the tasks have printed, one after the other."""
        return "".join(task.logs(tail=tail, attempt=attempt, rank=rank, node=node) for task in self._tasks)

    def follow(self, *, tail: int = 0, rank: int | None = None, node: str = "") -> Iterator[str]:
        """Yield what the tasks print, one task after the other, until all have ended."""
        for task in self._tasks:
            yield from task.follow(tail=tail, rank=rank, node=node)

    def _outcome(self, job: client_pb2.Job) -> list[Result]:
        request = client_pb2.ListJobsRequest(job_ids=[self.id])
        ended = {task.job_id: task for task in self._link.ask(lambda stub: ask(stub.ListJobs, request)).jobs}
        if missing := [task.id for task in self._tasks if task.id not in ended]:
            raise Failure(f"no job {missing[0]}: it was removed")
        return [task._outcome(ended[task.id]) for task in self._tasks]


def awaited(future: Future[client_pb2.Job], timeout: float | None, job_id: str) -> client_pb2.Job:
    """Return the job that the future has in time. Raises TimeoutError, which names the job, and `Failure`."""
    try:
        return future.result(timeout)
    except TimeoutError:
        raise TimeoutError(f"after {timeout} s still waiting for job {job_id}") from None
    finally:
        future.cancel()


def job_of(link: Link, job: client_pb2.Job) -> Job[Any]:
    """Return the job that the master shows, or the array."""
    folder = functions.folder_of(job.spec.command)
    if not job.HasField("tasks"):
        return Job(link, job.job_id, folder)
    return JobArray(link, job.job_id, folder, _indices(job.tasks.indices))


def _indices(text: str) -> list[int]:
    """Return the indices in a master's list, such as ``0-2,5``, which may be longer than any that a user types."""
    pieces = (piece.partition("-") for piece in text.split(","))
    return [index for low, _, high in pieces for index in range(int(low), int(high or low) + 1)]


def progress_of(job: client_pb2.Job) -> JobProgress | None:
    """Return what the job reported last; None if it has reported nothing."""
    if not job.HasField("progress"):
        return None
    reported = job.progress
    total = reported.total if reported.HasField("total") else None
    loss = reported.loss if reported.HasField("loss") else None
    return JobProgress(reported.step, total, loss, dict(reported.metrics))


def _gpus(gpus: Count) -> GpuRange:
    try:
        return parse_gpus(text_of("gpus", gpus))
    except ValueError as error:
        raise Failure(f"resize: --gpus: {error}", USAGE) from None
