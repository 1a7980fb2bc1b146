"""The cluster and its jobs for coroutines: the same methods under the same names, to be awaited.

A question to the master waits on a thread. A wait for the end of a job needs none, however many jobs are waited for.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar, Unpack, overload

from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.api.cluster import Cluster
from ebbtide_cli.api.job import Job, JobArray, JobProgress, progress_of
from ebbtide_cli.api.options import Count, JobOptions
from ebbtide_cli.describing.facts import Facts, job_facts, state_of
from ebbtide_cli.describing.jobs import finished
from ebbtide_cli.errors import Unreachable
from ebbtide_cli.masters.connection import RETRY_S, Outage, connecting

Result = TypeVar("Result")
_in_thread = asyncio.to_thread


class AsyncJob(Generic[Result]):
    """A `Job` whose methods are awaited, and so are the properties of a `Job`, which are methods here."""

    def __init__(self, job: Job[Result]) -> None:
        self.id = job.id
        self.sync = job
        """The same job, for code that waits in place."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def __str__(self) -> str:
        return self.id

    async def state(self) -> str:
        """Return the state now, as `Job.state`."""
        return state_of(await self._show())

    async def reason(self) -> str:
        """Return why the job is in its state, as `Job.reason`."""
        return (await self._show()).reason

    async def progress(self) -> JobProgress | None:
        """Return what the job reported last, as `Job.progress`."""
        return progress_of(await self._show())

    async def facts(self) -> Facts:
        """Return all facts on the job, as `Job.facts`."""
        return job_facts(await self._show())

    async def done(self) -> bool:
        """Return whether the job has ended for good."""
        return finished(await self._show())

    async def wait(self, timeout: float | None = None) -> str:
        """Wait until the job has ended, as `Job.wait`."""
        return state_of(await self._ended(timeout))

    async def result(self, timeout: float | None = None) -> Result:
        """Wait until the job has ended, and return its result or raise its error, as `Job.result`.

        The error of a cancelled job is `concurrent.futures.CancelledError`, and not that of a cancelled task.
        """
        return await _in_thread(self.sync._outcome, await self._ended(timeout))

    async def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does, and return what it would raise, as `Job.exception`."""
        job = await self._ended(timeout)
        try:
            await _in_thread(self.sync._outcome, job)
        except (Exception, CancelledError) as error:  # noqa: BLE001 - it is what was asked for
            return error
        return None

    async def suspend(self, *, wait: bool = False, timeout: float | None = None) -> None:
        """Let the job save and free its GPUs, as `Job.suspend`."""
        await _in_thread(self.sync.suspend, wait=wait, timeout=timeout)

    async def resume(self, *, wait: bool = False, timeout: float | None = None) -> None:
        """Let the job go on, as `Job.resume`."""
        await _in_thread(self.sync.resume, wait=wait, timeout=timeout)

    async def resize(self, gpus: Count, *, wait: bool = False, timeout: float | None = None) -> None:
        """Let the job go on with another number of GPUs, as `Job.resize`."""
        await _in_thread(self.sync.resize, gpus, wait=wait, timeout=timeout)

    async def cancel(self, *, now: bool = False, wait: bool = False, timeout: float | None = None) -> None:
        """End the job for good, as `Job.cancel`."""
        await _in_thread(self.sync.cancel, now=now, wait=wait, timeout=timeout)

    async def remove(self) -> None:
        """Let the master forget the job, as `Job.remove`."""
        await _in_thread(self.sync.remove)

    async def logs(self, *, tail: int = 0, attempt: int = 0, rank: int | None = None, node: str = "") -> str:
        """Return what the job has printed until now, as `Job.logs`."""
        return await _in_thread(self.sync.logs, tail=tail, attempt=attempt, rank=rank, node=node)

    async def watch(self) -> AsyncIterator[Facts]:
        """Yield the facts on the job now, and whenever something changes, until the job has ended, as `Job.watch`."""
        outage = Outage(reached=True)
        while True:
            try:
                async with connecting(self.sync._link.master) as stub:
                    outage.begin()
                    stream: Any = stub.WatchJobs(client_pb2.WatchJobsRequest(job_ids=[self.id]))
                    async for job in stream:
                        outage.heard = True
                        yield job_facts(job)
                        if finished(job):
                            return
            except Unreachable:
                if outage.lasts():
                    raise
            await asyncio.sleep(RETRY_S)

    async def _show(self) -> client_pb2.Job:
        return await _in_thread(self.sync._show)

    async def _ended(self, timeout: float | None) -> client_pb2.Job:
        job = await self._show()
        if finished(job):
            return job
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(self.sync._link.waits.until(self.id))
        except TimeoutError:
            raise TimeoutError(f"after {timeout} s still waiting for job {self.id}") from None


class AsyncJobArray(AsyncJob[list[Result]], Sequence[AsyncJob[Result]]):
    """The tasks of an array, as a `JobArray`."""

    def __init__(self, array: JobArray[Result]) -> None:
        super().__init__(array)
        self._tasks: list[AsyncJob[Result]] = [AsyncJob(task) for task in array]

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int) -> AsyncJob[Result]: ...
    @overload
    def __getitem__(self, index: slice) -> list[AsyncJob[Result]]: ...
    def __getitem__(self, index: int | slice) -> AsyncJob[Result] | list[AsyncJob[Result]]:
        return self._tasks[index]

    def __iter__(self) -> Iterator[AsyncJob[Result]]:
        return iter(self._tasks)


class AsyncCluster:
    """A `Cluster` whose methods are awaited."""

    def __init__(self, cluster: Cluster) -> None:
        self.sync = cluster
        """The same cluster, for code that waits in place."""

    @classmethod
    async def connect(cls, master: str | None = None) -> "AsyncCluster":
        """Connect to a master, as `Cluster.connect`."""
        return cls(await _in_thread(Cluster.connect, master))

    @overload
    async def submit(
        self, work: Callable[..., Result], /, *args: Any, **options: Unpack[JobOptions]
    ) -> AsyncJob[Result]: ...
    @overload
    async def submit(self, work: Sequence[str], /, **options: Unpack[JobOptions]) -> AsyncJob[None]: ...
    async def submit(self, work: Any, /, *args: Any, **options: Any) -> AsyncJob[Any]:
        """Queue a function or a command, as `Cluster.submit`."""
        return _asynchronous(await _in_thread(self.sync.submit, work, *args, **options))

    async def map(
        self, function: Callable[..., Result], /, *inputs: Iterable[Any], **options: Unpack[JobOptions]
    ) -> AsyncJobArray[Result]:
        """Queue an array with a task for each input, as `Cluster.map`."""
        return AsyncJobArray(await _in_thread(lambda: self.sync.map(function, *inputs, **options)))

    async def job(self, job_id: str | int) -> AsyncJob[Any]:
        """Return the job or array with this id, as `Cluster.job`."""
        return _asynchronous(await _in_thread(self.sync.job, job_id))

    async def jobs(
        self,
        *,
        name: str | None = None,
        all: bool = False,
        mine: bool = False,
        user: str | None = None,
        state: str | Sequence[str] = (),
        limit: int = 0,
    ) -> list[AsyncJob[Any]]:
        """List jobs, as `Cluster.jobs`."""
        found = await _in_thread(self.sync.jobs, name=name, all=all, mine=mine, user=user, state=state, limit=limit)
        return [_asynchronous(job) for job in found]


def _asynchronous(job: Job[Any]) -> AsyncJob[Any]:
    return AsyncJobArray(job) if isinstance(job, JobArray) else AsyncJob(job)
