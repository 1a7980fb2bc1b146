"""Who submits jobs, and wishes for this and that, while everything breaks."""

import contextlib
import os
import random
import sys
import threading
import time
from pathlib import Path

from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.e2e.day.line import Line, Refused

COMPUTING = Path(__file__).parents[1] / "e2e" / "day" / "computing.py"
MOST_JOBS = 14
OVER = (job_pb2.JOB_STATE_COMPLETED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED)
LEASE_S = 33.0
SHARES = ((1, 1), (1, 1), (1, 1), (2, 1), (1, 2), (1, 4))


class People(threading.Thread):
    """Submit and wish until told to stop; ``ids`` are the acknowledged jobs, by operation."""

    def __init__(self, home: Path, witnesses: Path, seed: int) -> None:
        super().__init__(name="people", daemon=True)
        self.line = Line(home)
        self.witnesses = witnesses
        self.dice = random.Random(f"{seed} people")
        self.ids: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.twice: list[str] = []
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self._suspended: dict[str, float] = {}

    def run(self) -> None:
        try:
            while not self.stop.wait(self.dice.uniform(0.05, 0.4)):
                self._go_about()
            self._resume(at_once=True)
        except BaseException as error:  # noqa: BLE001 (whoever waits for this thread raises it)
            self.error = error
        finally:
            self.line.close()

    def _go_about(self) -> None:
        jobs = self.line.ask("ListJobs", client_pb2.ListJobsRequest()).jobs
        for _ in range(min(3, MOST_JOBS - len(jobs))):
            self._submit()
        running = [job.job_id for job in jobs if job.state == job_pb2.JOB_STATE_RUNNING]
        drawn = self.dice.random()
        if running and drawn < 0.10:
            id = self.dice.choice(running)
            self._wish("Suspend", client_pb2.JobRequest(job_id=id))
            self._suspended.setdefault(id, time.monotonic() + self.dice.uniform(0.2, 3.0))
        elif running and drawn < 0.13:
            id = self.dice.choice(running)
            self.cancelled.add(id)
            self._wish("Cancel", client_pb2.CancelRequest(job_id=id, now=self.dice.random() < 0.5))
        self._resume()

    def _submit(self) -> None:
        operation = f"submit-{len(self.ids)}"
        steps = self.dice.choice((self.dice.randint(20, 120), self.dice.randint(20, 120), 200))
        fails = int(self.dice.random() < 0.15)
        numerator, denominator = self.dice.choice(SHARES)
        share = job_pb2.Share(numerator=numerator, denominator=denominator)
        urgent, leased = self.dice.random() < 0.2, self.dice.random() < 0.2
        spec = job_pb2.JobSpec(
            name=operation,
            command=[sys.executable, str(COMPUTING), str(self.witnesses), str(steps), "0.05", "7", "sdk", str(fails)],
            workdir=str(self.witnesses),
            env={"PATH": os.environ["PATH"]},
            gpus_min=share,
            gpus_max=share,
            grace_s=2.0 if leased else 20.0,
            failover_after_s=LEASE_S if leased else None,
            job_class=job_pb2.JOB_CLASS_TRIAL_AND_ERROR if urgent else job_pb2.JOB_CLASS_BEST_EFFORT,
        )
        request = client_pb2.SubmitRequest(spec=spec, operation_id=operation)
        id = self.line.ask("Submit", request).job_id
        self.ids[operation] = id
        if self.dice.random() < 0.1 and (again := self.line.ask("Submit", request).job_id) != id:
            self.twice.append(f"{operation} is job {id}, and asked again it is job {again}")

    def _resume(self, at_once: bool = False) -> None:
        for id, due in list(self._suspended.items()):
            if at_once or time.monotonic() > due:
                del self._suspended[id]
                self._wish("Resume", client_pb2.JobRequest(job_id=id))

    def _wish(self, method: str, request: object) -> None:
        with contextlib.suppress(Refused):  # the job was over, or about to be, by the time that the wish arrived
            self.line.ask(method, request)
