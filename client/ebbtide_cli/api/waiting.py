"""Wait for many jobs with one thread, which lists them at a pace that leaves the master time for others."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Final

from ebbtide_core.model.limits import MAX_IDS
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.describing.jobs import finished
from ebbtide_cli.errors import Failure, TooFast, Unreachable
from ebbtide_cli.logs.pace import pause_s
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.connection import Outage, ask, connected

Condition = Callable[[client_pb2.Job], bool]

_THREAD: Final = "ebbtide jobs"


class Waits:
    """What is waited for at one master. The thread ends when nothing is left, and never keeps a program from ending."""

    def __init__(self, master: str | Address) -> None:
        self._master = master
        self._lock = threading.Lock()
        self._waiting: dict[str, list[tuple[Condition, Future[client_pb2.Job]]]] = {}
        self._running = False

    def until(self, job_id: str, holds: Condition = finished) -> "Future[client_pb2.Job]":
        """Return a future that has the job once ``holds`` is true of it, or a `Failure` if that cannot be told."""
        future: Future[client_pb2.Job] = Future()
        with self._lock:
            self._waiting.setdefault(job_id, []).append((holds, future))
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name=_THREAD, daemon=True).start()
        return future

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:
            while ids := self._ids():  # else they would wait for a thread that is gone
                self._fail(ids, error)
            raise

    def _follow(self) -> None:
        """Ask and settle until nothing is waited for."""
        outage, pause = Outage(reached=True), threading.Event()
        while ids := self._ids():
            wait_s = pause_s(len(ids))
            try:
                jobs = {job.job_id: job for job in self._list(ids)}
            except Unreachable as error:
                if outage.lasts():
                    self._fail(ids, error)
            except TooFast as error:
                wait_s = max(wait_s, error.wait_s)
            except Failure as error:
                self._fail(ids, error)
            else:
                outage.heard = True
                self._settle(ids, jobs)
            pause.wait(wait_s)

    def _ids(self) -> list[str]:
        """Return the jobs that are waited for; if there are none, the thread is over."""
        with self._lock:
            for job_id, waits in list(self._waiting.items()):
                waits[:] = [(holds, future) for holds, future in waits if not future.cancelled()]
                if not waits:
                    del self._waiting[job_id]
            self._running = bool(self._waiting)
            return list(self._waiting)

    def _list(self, ids: Sequence[str]) -> Iterator[client_pb2.Job]:
        """Yield the jobs that still exist; an array is one of them, as its tasks are together."""
        tasks = [job_id for job_id in ids if "." in job_id]
        whole = [job_id for job_id in ids if "." not in job_id]
        with connected(self._master) as stub:
            for named, folded in ((tasks, False), (whole, True)):
                for start in range(0, len(named), MAX_IDS):
                    request = client_pb2.ListJobsRequest(job_ids=named[start : start + MAX_IDS], folded=folded)
                    yield from ask(stub.ListJobs, request).jobs

    def _settle(self, ids: Sequence[str], jobs: dict[str, client_pb2.Job]) -> None:
        for job_id in ids:
            job = jobs.get(job_id)
            if job is None:
                self._fail([job_id], Failure(f"no job {job_id}: it was removed"))
                continue
            for future in self._taken(job_id, job):
                if future.set_running_or_notify_cancel():
                    future.set_result(job)

    def _taken(self, job_id: str, job: client_pb2.Job) -> "list[Future[client_pb2.Job]]":
        """Return the waits whose condition holds, and wait for them no more."""
        with self._lock:
            waits = self._waiting.get(job_id, [])
            due = [(holds, future) for holds, future in waits if holds(job)]
            waits[:] = [wait for wait in waits if wait not in due]
            return [future for _, future in due]

    def _fail(self, ids: Sequence[str], error: Exception) -> None:
        for job_id in ids:
            with self._lock:
                waits = self._waiting.pop(job_id, [])
            for _, future in waits:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
