"""Print the output of an array's tasks as it appears; a bounded number of logs are read at a time.

A stream tells when something has changed, and a listing then tells which tasks have begun. A log that waits for its
turn is read from its beginning later, so nothing is left out. A suspended task gives its turn to one that runs.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

import grpc
from ebbtide_protos.v1 import client_pb2, job_pb2
from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

from ebbtide_cli import interrupts
from ebbtide_cli.channels.client_channel import write_all
from ebbtide_cli.describing.jobs import finished
from ebbtide_cli.errors import TooFast, Unreachable
from ebbtide_cli.logs.log_reading import LogLines, LogPosition
from ebbtide_cli.logs.pace import pause_s
from ebbtide_cli.masters.connection import REPLY_S, RETRY_S, Outage, connecting
from ebbtide_cli.terminal.output import complain, print_attempt

MOST_FOLLOWED: Final = 16
"""Logs that are read at a time: each user may follow 24 logs of a node, and more than one `ebb` may run."""
_STDOUT: Final = 1
_ON_GPUS: Final = ("RUNNING", "STARTING", "SUSPENDING", "STOPPING", "UNREACHABLE")
_BEGUN: Final = tuple(
    state
    for state in job_pb2.JobState.values()
    if state not in (job_pb2.JOB_STATE_UNSPECIFIED, job_pb2.JOB_STATE_PENDING)
)


def follow_tasks(master: str | None, request: client_pb2.ReadLogsRequest, tasks: Sequence[str], *, tidy: bool) -> bool:
    """Print the logs of these ``tasks``, which ``request`` names together, until all of them have ended.

    Returns whether every log could be read; a log that cannot be read is reported. Raises `Failure`.
    """
    following = _Following(request, tasks, tidy=tidy)
    interrupts.run(following.run(master))
    return following.complete


class _Log:
    """The log of one task, and how far it was read."""

    def __init__(self, task: str, request: client_pb2.ReadLogsRequest, *, tidy: bool) -> None:
        own = client_pb2.ReadLogsRequest()
        own.CopyFrom(request)
        own.job_id = task
        self.task = task
        self.place = LogPosition(own)
        self.lines = LogLines(f"{task}: ", tidy=tidy, whole=True)
        self.outage = Outage()
        self.is_due = False  # its task has begun and is not suspended, so there is or will be something to read


class _Following:
    def __init__(self, request: client_pb2.ReadLogsRequest, tasks: Sequence[str], *, tidy: bool) -> None:
        self.complete = True
        self._named = request.job_id
        self._of_attempt = bool(request.attempt)
        self._left = {task: _Log(task, request, tidy=tidy) for task in tasks}  # logs that are not yet read to their end
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._printing = asyncio.Lock()
        self._over = False  # all tasks have ended
        self._noted = False
        self._outage = Outage()

    async def run(self, master: str | None) -> None:
        """Follow the logs, across restarts of the master, and if too much is asked at a time. Raises `Failure`."""
        while self._left:
            try:
                async with connecting(master) as stub:
                    self._outage.begin()
                    await self._follow(stub)
            except Unreachable:
                if self._outage.lasts():
                    raise
                await asyncio.sleep(RETRY_S)
            except TooFast as error:
                await asyncio.sleep(error.wait_s)

    async def _follow(self, stub: Any) -> None:
        """Follow the logs over one connection until all are read. Raises the error that ends it."""
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed.set()
        tasks = [self._begin(self._watch(stub)), self._begin(self._keep_looking(stub))]
        try:
            await self._end
        finally:
            tasks += self._readers.values()
            self._readers.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._note_failure)
        return task

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._end.done():
            self._end.set_exception(error)

    async def _watch(self, stub: Any) -> None:
        """Note each change of the array that the master reports."""
        async for whole in stub.WatchJobs(client_pb2.WatchJobsRequest(job_ids=[self._named])):
            self._outage.heard = True
            self._over = finished(whole)
            self._warn(whole.tasks.states)
            self._changed.set()
        if not self._over:
            raise Unreachable("the master stopped telling about the jobs")

    def _warn(self, states: Mapping[str, int]) -> None:
        running = sum(states[state] for state in _ON_GPUS if state in states)
        if running > MOST_FOLLOWED and not self._noted:
            self._noted = True
            words = "others follow when one of those has ended or is suspended"
            complain(f"{running} tasks run, and {MOST_FOLLOWED} are followed at a time: {words}")

    async def _keep_looking(self, stub: Any) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            listed = await self._look(stub)
            self._choose(stub)
            await asyncio.sleep(pause_s(listed))

    async def _look(self, stub: ClientServiceStub) -> int:
        """Find out which tasks have begun and which have ended; return how many tasks were listed."""
        if not self._left:
            return 0
        over = self._over  # read before the listing: if it is set, no task begins after the listing
        indices = [int(task.partition(".")[2]) for task in self._left]
        named = f"{self._named.partition('.')[0]}.{min(indices)}-{max(indices)}"
        request = client_pb2.ListJobsRequest(job_ids=[named], states=_BEGUN)
        listing: Any = stub.ListJobs(request, timeout=REPLY_S)
        found = {job.job_id: job for job in (await listing).jobs}
        for task, log in list(self._left.items()):
            job = found.get(task)
            log.is_due = job is not None and job.HasField("start_time") and job.state != job_pb2.JOB_STATE_SUSPENDED
            never = over if job is None else finished(job) and not job.HasField("start_time")
            if never and task not in self._readers:  # the task was removed, or cancelled before it began
                del self._left[task]
        return len(found)

    def _choose(self, stub: Any) -> None:
        """Start reading the logs that have something to read, in order, as far as the limit allows."""
        waiting = [log for log in self._left.values() if log.is_due and log.task not in self._readers]
        idle = [task for task in self._readers if not self._left[task].is_due]
        for task in idle[: max(0, len(waiting) + len(self._readers) - MOST_FOLLOWED)]:
            self._readers.pop(task).cancel()
        for log in waiting[: MOST_FOLLOWED - len(self._readers)]:
            self._readers[log.task] = self._begin(self._read(stub, log))
        if not self._left and not self._end.done():
            self._end.set_result(None)

    async def _read(self, stub: Any, log: _Log) -> None:
        """Print one log to its end."""
        while not await self._read_once(stub, log):
            await asyncio.sleep(RETRY_S)
        await asyncio.shield(self._close(log))
        del self._readers[log.task], self._left[log.task]
        self._choose(stub)

    async def _read_once(self, stub: Any, log: _Log) -> bool:
        """Print what one stream of the log brings; return whether the log is complete, or can be read no further."""
        log.outage.begin()
        try:
            async for chunk in stub.ReadLogs(log.place.resumed()):
                if data := log.place.take(chunk):
                    log.outage.heard = True  # by what is new: else a log of which a later part is lost never ended
                    # Bytes that were taken are printed even if the stream is cancelled now: they are not sent again.
                    await asyncio.shield(self._print(log, chunk.attempt, data))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await stub.ShowCluster(client_pb2.ShowClusterRequest(), timeout=REPLY_S)  # fails if the master is away
                if not log.outage.lasts():
                    return False
            elif error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
            if not (self._of_attempt and error.code() is grpc.StatusCode.NOT_FOUND):  # most tasks have only one attempt
                complain(f"{log.task}: {error.details()}")
                self.complete = False
        return True

    async def _print(self, log: _Log, attempt: int, data: bytes) -> None:
        async with self._printing:
            if log.lines.is_next(attempt):
                await _write(log.lines.end())
                print_attempt(attempt, log.lines.prefix)
            await _write(log.lines.feed(data))

    async def _close(self, log: _Log) -> None:
        async with self._printing:
            await _write(log.lines.close())


async def _write(data: bytes) -> None:
    if data:
        await write_all(_STDOUT, data)
