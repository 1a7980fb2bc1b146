"""What the master knows, fetched again and again on a thread that a master which hangs holds up alone."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ebbtide_protos.v1 import client_pb2
from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

from ebbtide_cli.address import Address, find_master
from ebbtide_cli.connection import RETRY_S, ask, connected
from ebbtide_cli.errors import Failure, Unreachable

SPEED_S: Final = 30.0
"""The span over which the speed of a job is a mean, if it was watched for so long."""

AWAY_S: Final = 1.0
"""How much later than expected an answer may come before the master counts as away."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The cluster at one moment."""

    at: float  # Unix seconds, of this machine
    master: str
    nodes: Sequence[client_pb2.Node]
    jobs: Sequence[client_pb2.Job]  # unfinished ones, in order of submission
    speeds: dict[str, float] = field(default_factory=dict)  # steps per second, by job
    away_s: float | None = None  # how long the master has not answered; None: it does


class Speeds:
    """Steps per second: over the last half minute of watching, or over its whole life for a job just met."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def take(self, jobs: Sequence[client_pb2.Job], at: float) -> dict[str, float]:
        """Take in the jobs as they are at this time (seconds of any clock); the speeds of those that tell."""
        for id in self._seen.keys() - {job.job_id for job in jobs}:
            del self._seen[id]
        return {job.job_id: speed for job in jobs if (speed := self._of(job, at)) is not None}

    def _of(self, job: client_pb2.Job, at: float) -> float | None:
        if not job.HasField("progress"):
            return None
        step, seen = job.progress.step, self._seen.setdefault(job.job_id, deque())
        if seen and step < seen[-1][1]:  # it began again before where it was
            seen.clear()
        seen.append((at, step))
        while at - seen[0][0] > SPEED_S:
            seen.popleft()
        then, before = seen[0]
        if at - then >= 1.0 and step > before:
            return (step - before) / (at - then)
        return step / job.running_s if job.running_s >= 1.0 and step else None


class Feed:
    """The newest picture. The first one is fetched by whoever asks for it, so that no master is an error at once."""

    def __init__(self, master: str | None, every_s: float) -> None:
        self._address: Address = find_master(master)
        self._named = master
        self._every_s = every_s
        self._speeds = Speeds()
        self._lock = threading.Lock()
        self._heard = time.monotonic()
        self._stop = threading.Event()
        self._broken: Failure | None = None
        with connected(self._address) as stub:
            self._picture = self._fetch(stub)

    def start(self) -> None:
        """Go on fetching until `stop`."""
        threading.Thread(target=self._run, name="top-feed", daemon=True).start()

    def stop(self) -> None:
        """Fetch no more."""
        self._stop.set()

    def picture(self) -> Picture:
        """The newest one, and how long ago the master last answered if it does not now. Raises `Failure`."""
        with self._lock:
            if self._broken is not None:
                raise self._broken
            silent_s = time.monotonic() - self._heard
            away = silent_s > 2 * self._every_s + AWAY_S
            last = self._picture
        if not away:
            return last
        return Picture(time.time(), last.master, last.nodes, last.jobs, last.speeds, silent_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except Unreachable:
                self._stop.wait(RETRY_S)
            except Failure as failure:
                with self._lock:
                    self._broken = failure
                return

    def _follow(self) -> None:
        # Looked up anew: a master that was restarted may listen elsewhere.
        address = find_master(self._named)
        with connected(address) as stub:
            self._address = address
            while not self._stop.wait(self._every_s):
                picture = self._fetch(stub)
                with self._lock:
                    self._picture, self._heard = picture, time.monotonic()

    def _fetch(self, stub: ClientServiceStub) -> Picture:
        nodes = ask(stub.ListNodes, client_pb2.ListNodesRequest()).nodes
        jobs = ask(stub.ListJobs, client_pb2.ListJobsRequest()).jobs
        speeds = self._speeds.take(jobs, time.monotonic())
        return Picture(time.time(), str(self._address), nodes, jobs, speeds)
