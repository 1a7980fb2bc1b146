"""The newest state of the demo's jobs: updated by a thread, awaited by the scenario, drawn by the view."""

import threading
import time
from collections.abc import Callable, Mapping

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.describing.jobs import finished, summary
from ebbtide_cli.errors import Failure
from ebbtide_cli.watching import watch_jobs

Jobs = Mapping[str, client_pb2.Job]
"""The newest message about each job, by its name."""

PATIENCE_S = 120.0
"""Seconds that a step of the demo may take; none takes as long, even on a small, busy machine."""


class Board:
    """The newest state of every job of the demo, by name."""

    def __init__(self, changed: Callable[[client_pb2.Job], None]) -> None:
        self._jobs: dict[str, client_pb2.Job] = {}
        self._news = threading.Condition()
        self._changed = changed
        self._broken: Failure | None = None

    def watch(self) -> None:
        """Record every change on a thread of its own until the program ends."""
        threading.Thread(target=self._watch, name="demo-board", daemon=True).start()

    def jobs(self) -> Jobs:
        """Return a copy of the newest states."""
        with self._news:
            return dict(self._jobs)

    def wait_until(self, what: str, true: Callable[[Jobs], bool]) -> Jobs:
        """Wait until ``true`` of the jobs; raise `Failure` if a job fails, or if ``what`` takes too long."""
        give_up = time.monotonic() + PATIENCE_S
        with self._news:
            while not true(self._jobs):
                if self._broken:
                    raise self._broken
                for job in self._jobs.values():
                    if finished(job) and job.state != job_pb2.JOB_STATE_COMPLETED:
                        raise Failure(f"demo: {summary(job)}")
                if not self._news.wait(give_up - time.monotonic()):
                    raise Failure(f"demo: {what}: not within {PATIENCE_S:.0f} s")
            return dict(self._jobs)

    def _watch(self) -> None:
        try:
            for job in watch_jobs(None, []):
                self._changed(job)
                with self._news:
                    self._jobs[job.spec.name] = job
                    self._news.notify_all()
        except Failure as failure:
            with self._news:
                self._broken = failure
                self._news.notify_all()
