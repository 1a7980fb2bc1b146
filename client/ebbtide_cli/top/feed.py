"""Fetch what the master knows, again and again, on threads, so that a master that hangs blocks nothing else."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ebbtide_core.model.types import HeldBy
from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.describing.facts import FINISHED
from ebbtide_cli.errors import Failure, Unreachable
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.connection import RETRY_S, ask, connected
from ebbtide_cli.masters.finding import find_master

if TYPE_CHECKING:
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

WAITING: Final = (job_pb2.JOB_STATE_PENDING, job_pb2.JOB_STATE_SUSPENDED)
NOT_RUNNING: Final = (*WAITING, job_pb2.JOB_STATE_STARTING)
SPEED_S: Final = 30.0
"""Seconds over which a job's speed is averaged, if it was watched for so long."""

AWAY_S: Final = 1.0
"""Seconds by which a reply may be later than expected before the master counts as away."""
RESPITE: Final = 20
"""The pause between requests, as a multiple of the reply time: a master with a thousand nodes has other work."""
SETTLED_S: Final = 2.0
"""Seconds after which a new connection has reported every existing job."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The cluster at one moment."""

    at: float  # Unix seconds, of this machine
    master: str
    nodes: Sequence[client_pb2.Node]
    jobs: Sequence[client_pb2.Job]  # unfinished ones, in order of submission
    ages_s: Mapping[str, float] = field(default_factory=dict)  # by job: seconds since it was last reported; 0 if absent
    speeds: Mapping[str, float] = field(default_factory=dict)  # by job: steps per second
    away_s: float | None = None  # seconds since the master last answered; None if it answers
    foreign_gpu_s: Mapping[str, float] = field(default_factory=dict)  # by user: GPU-seconds of foreign processes so far

    def ran_s(self, job: client_pb2.Job) -> float:
        """Return how long the job has run by now, in seconds."""
        return job.running_s + (0.0 if job.state in NOT_RUNNING else self.ages_s.get(job.job_id, 0.0))

    def waited_s(self, job: client_pb2.Job) -> float:
        """Return how long the job has waited by now, in seconds, without the time for which its user held it."""
        waits = job.state in NOT_RUNNING and job.held_by != HeldBy.USER.value
        return job.waiting_s + (self.ages_s.get(job.job_id, 0.0) if waits else 0.0)


class Jobs:
    """The unfinished jobs as they were last reported. A new connection reports all of them again."""

    def __init__(self, jobs: Iterable[client_pb2.Job], at: float) -> None:
        self._reported = {job.job_id: _ReportedJob(job, at, 0) for job in jobs}
        self._connection = 0
        self._connected_at = at
        self._lock = threading.Lock()

    def connected(self, at: float) -> None:
        """Note that a new connection was made at this time (seconds of any clock)."""
        with self._lock:
            self._connection += 1
            self._connected_at = at

    def take(self, job: client_pb2.Job, at: float) -> None:
        """Store a job as it is now."""
        with self._lock:
            if job.state in FINISHED:
                self._reported.pop(job.job_id, None)
            else:
                self._reported[job.job_id] = _ReportedJob(job, at, self._connection)

    def now(self, at: float) -> tuple[list[client_pb2.Job], dict[str, float]]:
        """Return all unfinished jobs, and for each the seconds since it was last reported."""
        with self._lock:
            if at - self._connected_at > SETTLED_S:  # a job that was not reported again has ended meanwhile
                gone = [id for id, reported in self._reported.items() if reported.connection != self._connection]
                for id in gone:
                    del self._reported[id]
            reported = list(self._reported.values())
        return [each.job for each in reported], {each.job.job_id: at - each.at for each in reported}


class _ReportedJob(NamedTuple):
    job: client_pb2.Job
    at: float
    connection: int


class Speeds:
    """Steps per second: over the last half minute of watching, or over a job's whole life if it was just found."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def take(self, jobs: Sequence[client_pb2.Job], ages_s: Mapping[str, float], at: float) -> dict[str, float]:
        """Record the jobs at this time (seconds of any clock); return the speeds of those that report steps."""
        running = [job for job in jobs if job.state not in WAITING and job.HasField("progress")]
        for id in self._seen.keys() - {job.job_id for job in running}:
            del self._seen[id]
        speeds = ((job.job_id, self._of(job, ages_s.get(job.job_id, 0.0), at)) for job in running)
        return {id: speed for id, speed in speeds if speed is not None}

    def _of(self, job: client_pb2.Job, age_s: float, at: float) -> float | None:
        step, seen = job.progress.step, self._seen.setdefault(job.job_id, deque())
        if seen and step < seen[-1][1]:  # the job resumed from an earlier step
            seen.clear()
        seen.append((at, step))
        while at - seen[0][0] > SPEED_S:
            seen.popleft()
        then, before = seen[0]
        if at - then >= 1.0 and step > before:
            return (step - before) / (at - then)
        running_s = job.running_s + age_s
        return step / running_s if running_s >= 1.0 and step else None


class Feed:
    """The newest picture of the cluster. The caller fetches the first one, so that a missing master fails at once."""

    def __init__(self, master: str | None, every_s: float) -> None:
        self._named = master
        self._every_s = self._pause_s = every_s
        self._speeds = Speeds()
        self._lock = threading.Lock()
        self._heard = time.monotonic()
        self._stop = threading.Event()
        self._stream: Any = None
        self._broken: Failure | None = None
        address = find_master(master)
        with connected(address) as stub:
            self._jobs = Jobs(ask(stub.ListJobs, client_pb2.ListJobsRequest()).jobs, time.monotonic())
            self._picture = self._fetch(stub, address)

    def start(self) -> None:
        """Start to fetch until `stop`."""
        for work in (self._poll_nodes, self._watch_jobs):
            threading.Thread(target=self._repeat, args=(work,), name="top-feed", daemon=True).start()

    def stop(self) -> None:
        """Stop fetching."""
        self._stop.set()
        if self._stream is not None:
            self._stream.cancel()

    def picture(self) -> Picture:
        """Return the newest picture, with the time since the last reply if the master is away. Raises `Failure`."""
        with self._lock:
            if self._broken is not None:
                raise self._broken
            silent_s = time.monotonic() - self._heard
            last = self._picture
            expected_s = 1.2 * self._pause_s + AWAY_S  # the next reply may take somewhat longer than the last
        if silent_s <= expected_s:
            return last
        return replace(last, at=time.time(), away_s=silent_s)

    def _repeat(self, work: "Callable[[ClientServiceStub, Address], None]") -> None:
        """Do the work on one connection after another."""
        while not self._stop.is_set():
            try:
                address = find_master(self._named)  # each time, because a restarted master may listen elsewhere
                with connected(address) as stub:
                    work(stub, address)
            except Unreachable:
                self._stop.wait(RETRY_S)
            except Failure as failure:
                with self._lock:
                    self._broken = failure
                return

    def _poll_nodes(self, stub: "ClientServiceStub", address: Address) -> None:
        while not self._stop.wait(self._pause_s):
            began = time.monotonic()
            picture = self._fetch(stub, address)
            with self._lock:
                self._picture, self._heard = picture, time.monotonic()
                self._pause_s = max(self._every_s, RESPITE * (self._heard - began))

    def _watch_jobs(self, stub: "ClientServiceStub", address: Address) -> None:
        # The jobs are not listed every second: of a hundred thousand that wait, few change.
        self._jobs.connected(time.monotonic())
        self._stream = stream = stub.WatchJobs(client_pb2.WatchJobsRequest())
        for job in stream:
            self._jobs.take(job, time.monotonic())
        raise Unreachable("the master stopped telling about the jobs")

    def _fetch(self, stub: "ClientServiceStub", address: Address) -> Picture:
        reply = ask(stub.ListNodes, client_pb2.ListNodesRequest())
        at = time.monotonic()
        jobs, ages_s = self._jobs.now(at)
        speeds = self._speeds.take(jobs, ages_s, at)
        return Picture(time.time(), str(address), reply.nodes, jobs, ages_s, speeds, foreign_gpu_s=reply.foreign_gpu_s)
