"""A `concurrent.futures.Executor` whose calls are jobs of the cluster."""

import concurrent.futures
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Generic, TypeVar, cast

from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.api.functions import Arguments
from ebbtide_cli.api.job import Job, Link
from ebbtide_cli.api.options import JobOptions
from ebbtide_cli.api.queueing import queue_call, queue_calls
from ebbtide_cli.errors import Failure, TooFast, Unreachable
from ebbtide_cli.submitting.sending import WAIT_S

Result = TypeVar("Result")


class JobFuture(concurrent.futures.Future[Result], Generic[Result]):
    """The future of one call, which is the ``job``. A job that runs can be cancelled, too."""

    def __init__(self, job: Job[Result]) -> None:
        super().__init__()
        self.job = job
        self._cancelling = threading.Lock()
        self._ended = job._link.waits.until(job.id)
        self._ended.add_done_callback(self._settle)

    def running(self) -> bool:
        """Return whether the job runs now. Raises `Failure` if the master cannot tell."""
        return not self.done() and self.job.state == "RUNNING"

    def cancel(self) -> bool:
        """Cancel the job; return False if it has ended already. Raises `Failure` if the master cannot be asked."""
        if not self.done() and _cancelled(self.job):
            self._be_cancelled()
        return self.cancelled()

    def _be_cancelled(self) -> None:
        with self._cancelling:  # the job's end may be seen at the same moment
            if not self.cancelled() and super().cancel():
                self.set_running_or_notify_cancel()  # wakes those who wait for several futures

    def _settle(self, ended: "concurrent.futures.Future[client_pb2.Job]") -> None:
        """Take over the outcome of the job, which has ended."""
        try:
            value = self.job._outcome(ended.result())
        except CancelledError:
            self._be_cancelled()
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            with suppress(concurrent.futures.InvalidStateError):  # it was cancelled meanwhile
                self.set_exception(error)
        else:
            with suppress(concurrent.futures.InvalidStateError):
                self.set_result(value)


class JobExecutor(concurrent.futures.Executor):
    """Submits calls as jobs with the same options. Jobs that were submitted go on when it is shut down."""

    def __init__(self, link: Link, options: JobOptions) -> None:
        self._link = link
        self._options = options
        self._lock = threading.Lock()
        self._open = True
        self._futures: set[JobFuture[Any]] = set()

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> JobFuture[Result]:
        """Queue a job that calls the function with these arguments, and return its future."""
        return self._follow([self._queued(lambda: queue_call(self._link, fn, args, kwargs, self._options))])[0]

    def map(
        self, fn: Callable[..., Result], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Result]:
        """Queue one array with a task for each input, and return an iterator over the results in their order.

        ``chunksize`` has no meaning here: each call is a task. Tasks that have not ended are cancelled if the iterator
        is closed early, or raises. Raises TimeoutError ``timeout`` seconds after this call.
        """
        give_up = None if timeout is None else monotonic() + timeout
        calls: list[Arguments] = [(args, {}) for args in zip(*iterables, strict=False)]
        if not calls:
            return iter(())
        futures = self._follow(self._queued(lambda: list(queue_calls(self._link, fn, calls, self._options))))
        return _results(futures, give_up)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; ``wait`` for the jobs to end, and cancel those that have not with ``cancel_futures``."""
        with self._lock:
            self._open = False
            futures = list(self._futures)
        if cancel_futures:
            _cancel_all(futures)
        if wait:
            concurrent.futures.wait(futures)

    def _queued(self, queue: Callable[[], Any]) -> Any:
        with self._lock:
            if not self._open:
                raise RuntimeError("the executor was shut down: it takes no more calls")
        return queue()

    def _follow(self, jobs: Iterable[Job[Result]]) -> list[JobFuture[Result]]:
        futures = [JobFuture(job) for job in jobs]
        with self._lock:
            self._futures.update(futures)
        for future in futures:
            future.add_done_callback(self._forget)
        return futures

    def _forget(self, future: "concurrent.futures.Future[Any]") -> None:
        with self._lock:
            self._futures.discard(cast("JobFuture[Any]", future))


def _results(futures: list[JobFuture[Result]], give_up: float | None) -> Iterator[Result]:
    try:
        for future in futures:
            yield future.result(None if give_up is None else give_up - monotonic())
    except BaseException as error:
        try:
            _cancel_all(futures)
        except Failure as failure:
            if isinstance(error, GeneratorExit):  # nothing else has failed
                raise
            error.add_note(f"the other tasks go on, because they could not be cancelled: {failure.message}")
        raise


def _cancel_all(futures: Sequence[JobFuture[Any]]) -> None:
    """Cancel the jobs that have not ended, each array with one request. Raises the first `Failure` at the end.

    The tasks of an array are those of one `map`, which nobody needs once one of them is given up.
    """
    by_job: dict[str, list[JobFuture[Any]]] = {}
    for future in futures:
        if not future.done():
            by_job.setdefault(future.job.id.partition(".")[0], []).append(future)
    failures: list[Failure] = []
    for job_id, together in by_job.items():
        try:
            if _cancelled(Job[Any](together[0].job._link, job_id, None)):
                for future in together:
                    future._be_cancelled()
        except Unreachable:
            raise
        except Failure as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


def _cancelled(job: Job[Any]) -> bool:
    """Cancel the job, and return whether it had not ended; wait if too much is asked at a time. Raises `Failure`."""
    give_up = monotonic() + WAIT_S
    while True:
        try:
            job.cancel()
        except TooFast as error:
            if monotonic() + error.wait_s > give_up:
                raise
            sleep(error.wait_s)
        except Failure:
            if not job.done():
                raise
            return False
        else:
            return True
