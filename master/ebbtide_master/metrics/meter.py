"""Counts what the master does, if its metrics are served."""

from collections.abc import Sequence
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.model.types import FINISHED, JobId, StopCause
from prometheus_client import CollectorRegistry, Counter, Histogram

WAITS_S: Final = (1, 10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 3 * 24 * 3600)
COMMITS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
PASSES_S: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class EventCounters:
    """Counters in ``registry``, fed by the master's loop."""

    def __init__(self, cluster: Cluster, registry: CollectorRegistry) -> None:
        self._cluster = cluster
        self._passes = Histogram(
            "ebbtide_pass_seconds", "Scheduling passes, by how long they took", buckets=PASSES_S, registry=registry
        )
        self._commits = Histogram(
            "ebbtide_journal_commit_seconds", "Commits to the journal", buckets=COMMITS_S, registry=registry
        )
        self._waits = Histogram(
            "ebbtide_wait_seconds", "From submit to the first start of a job", ["pool"], buckets=WAITS_S,
            registry=registry,
        )  # fmt: skip
        self._submitted = Counter("ebbtide_jobs_submitted_total", "Jobs accepted", ["pool"], registry=registry)
        self._ended = Counter("ebbtide_jobs_ended_total", "Jobs that ended", ["pool", "state"], registry=registry)
        self._preempted = Counter("ebbtide_preemptions_total", "Attempts preempted", ["pool"], registry=registry)
        self._suspended = Counter(
            "ebbtide_suspensions_total", "Times that a job stepped aside; checkpoint: yes, no or unknown",
            ["pool", "checkpoint"], registry=registry,
        )  # fmt: skip

    def passed(self, seconds: float) -> None:
        """Count a scheduling pass that took so many seconds."""
        self._passes.observe(seconds)

    def committed(self, seconds: float) -> None:
        """Count a commit to the journal that took so many seconds."""
        self._commits.observe(seconds)

    def recorded(self, time: float, events: Sequence[Event]) -> None:
        """Count ``events``; several events of one time may be one end of a job, or one suspension."""
        seen = dict.fromkeys(id for event in events if (id := getattr(event, "job", None)) is not None)
        for event in events:
            self._count(time, event)
        for id in seen:
            self._count_job(time, id)

    def _count(self, time: float, event: Event) -> None:
        match event:
            case e.JobSubmitted(job=id):
                self._submitted.labels(self._pool(id)).inc()
            case e.AttemptPlaced(job=id, attempt=1):
                job = self._cluster.job(id)
                if job is not None:
                    self._waits.labels(job.pool).observe(max(0.0, time - job.submitted))
            case e.StopRequested(job=id, cause=StopCause.PREEMPTED):
                self._preempted.labels(self._pool(id)).inc()
            case _:
                pass

    def _count_job(self, time: float, id: JobId) -> None:
        job = self._cluster.job(id)
        if job is None:
            return
        if job.state in FINISHED and job.end is not None and job.end.at == time:
            self._ended.labels(job.pool, job.state.value.lower()).inc()
        if job.suspensions and job.suspensions[-1].exited == time:
            self._suspended.labels(job.pool, job.suspensions[-1].checkpointed.value).inc()

    def _pool(self, id: JobId) -> str:
        job = self._cluster.job(id)
        return job.pool if job is not None else ""
