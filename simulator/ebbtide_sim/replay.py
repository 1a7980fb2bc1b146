"""Reads a live cluster's journal: its measures, and its jobs as a workload to simulate under another policy."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, TextIO

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.events.codec import UnknownEventError, decode_event
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.model.types import WHOLE, StopCause
from ebbtide_core.policies.fifo import Fifo
from ebbtide_core.state import ClusterState

from ebbtide_sim.metrics import Metrics, Report, Tally
from ebbtide_sim.workload import SimJob, Workload, WorkloadError
from ebbtide_sim.workloads.nodes import SimNode

SCHEMA_VERSION: Final = 1
"""The schema version of the journal; newer ones are refused."""
SQLITE: Final = b"SQLite format 3\0"
"""The first bytes of a journal file."""
COMPUTING: Final = 1e-3
"""The least computing time of a job, in seconds, so that it can be simulated."""


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One event of a journal, at Unix time ``time``."""

    sequence: int
    time: float
    kind: str
    body: Mapping[str, Any]


def read_journal(path: Path) -> Iterator[RecordedEvent]:
    """Yield the events of a master's journal, opened read-only; raise `WorkloadError` if the file is not one."""
    if not path.is_file():
        raise WorkloadError(f"{path}: there is no journal")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise WorkloadError(f"{path}: was written by a newer version of Ebbtide (schema {version})")
            for sequence, time, kind, body in db.execute("SELECT sequence, time, kind, body FROM events ORDER BY 1"):
                yield RecordedEvent(sequence, time, kind, _body(body, f"{path}: event {sequence}"))
    except sqlite3.Error as error:
        raise WorkloadError(f"{path}: is no journal: {error}") from None


def read_export(path: Path) -> Iterator[RecordedEvent]:
    """Yield the events of an export, one JSON object ``{sequence, time, kind, body}`` per line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, 1):
        entry = _body(line, f"{path}:{number}")
        try:
            yield RecordedEvent(int(entry["sequence"]), float(entry["time"]), str(entry["kind"]), dict(entry["body"]))
        except (KeyError, TypeError, ValueError):
            raise WorkloadError(f"{path}:{number}: is not an object with sequence, time, kind and body") from None


def read_either(path: Path) -> Iterator[RecordedEvent]:
    """Yield the events of a journal or of an export, whichever ``path`` is."""
    try:
        with path.open("rb") as file:
            is_journal = file.read(len(SQLITE)) == SQLITE
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror}") from None
    return read_journal(path) if is_journal else read_export(path)


def _body(text: str, where: str) -> Any:
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise WorkloadError(f"{where}: is not a JSON object")
    return body


def write_export(lines: Iterable[RecordedEvent], out: TextIO) -> None:
    """Write events as `read_export` reads them."""
    for line in lines:
        entry = {"sequence": line.sequence, "time": line.time, "kind": line.kind, "body": line.body}
        out.write(json.dumps(entry, separators=(",", ":")) + "\n")


@dataclass(frozen=True, slots=True)
class RecordedPast:
    """What a journal tells: nodes, jobs as a workload, the median restart cost in seconds, and the live measures."""

    nodes: tuple[SimNode, ...]
    workload: Workload
    restart_cost_s: float
    live: Report


def reconstruct(lines: Iterable[RecordedEvent]) -> RecordedPast:
    """Fold a journal, and derive each job's requests and run time; raise `WorkloadError` if it has no jobs or nodes.

    A rigid job's run time is the time that it computed. An elastic job's is its work in seconds on one GPU, if speed
    grows linearly with GPUs. Jobs that did not finish count with what they computed; jobs that never ran are left out.
    """
    state, end = _folded(lines)
    if not state.jobs:
        raise WorkloadError("the journal has no jobs")
    nodes = tuple(_node(node.facts) for node in state.nodes.values())
    if not nodes:
        raise WorkloadError("the journal has no nodes: nothing could run")
    began = min(job.submitted for job in state.jobs.values())
    ran = [job for job in state.jobs.values() if any(attempt.started is not None for attempt in job.attempts)]
    unfinished = sum(job.end is None or job.end.state.value != "COMPLETED" for job in ran)
    changed = sum((job.priority, job.weight) != (job.spec.priority, job.spec.weight) for job in ran)
    needy = sum(job.eligibility.constrained for job in ran)
    pools = sorted({job.pool for job in ran} | {node.facts.pool for node in state.nodes.values()})
    notes = tuple([f"the pools {', '.join(pools)} are taken for one"] if len(pools) > 1 else [])
    notes += tuple(
        f"{count} jobs {what}"
        for count, what in (
            (unfinished, "were not completed: they count with what they computed"),
            (needy, "could not run on every node: they run wherever there is room"),
            (changed, "were given another priority or weight: they have the last one from the beginning"),
        )
        if count
    )
    never = len(state.jobs) - len(ran)
    jobs = sorted((_sim_job(job, began, end) for job in ran), key=lambda job: job.submit_s)
    restarts = [
        attempt.started - attempt.placed
        for job in ran
        for attempt in job.attempts[1:]
        if attempt.started is not None
    ]  # fmt: skip
    return RecordedPast(
        nodes,
        Workload("journal", jobs, {"never ran": never} if never else {}, notes),
        median(restarts) if restarts else 0.0,
        _live(ran, began, end, sum(node.gpus for node in nodes)),
    )


def _folded(lines: Iterable[RecordedEvent]) -> tuple[ClusterState, float]:
    """Return the state at the end of a journal, with retired jobs kept, and the time of the last event."""
    cluster, time = Cluster(Fifo()), 0.0
    for line in lines:
        event = read_event(line)
        time = line.time
        if not isinstance(event, e.JobRetired):
            cluster.replay(event, line.time)
    return cluster.state, time


def read_event(line: RecordedEvent) -> Event:
    """Decode the event of a line; raise `WorkloadError` if it cannot be read."""
    try:
        return decode_event(line.kind, line.body)
    except (UnknownEventError, KeyError, TypeError, ValueError):
        raise WorkloadError(f"event {line.sequence} of the journal, a {line.kind}, cannot be read") from None


def _node(facts: e.NodeRegistered) -> SimNode:
    return SimNode(
        name=facts.node,
        gpus=len(facts.gpus),
        gpu_mem_bytes=min((gpu.mem_bytes for gpu in facts.gpus), default=0),
        cpus=facts.cpus,
        mem_bytes=facts.mem_bytes,
        model=facts.gpus[0].model if facts.gpus else "",
    )


def _sim_job(job: Job, began: float, end: float) -> SimJob:
    spec = job.spec
    computed = max(COMPUTING, sum(_computed(attempt, end) for attempt in job.attempts))
    work = sum(_computed(attempt, end) * max(1, attempt.allocation.share) for attempt in job.attempts)
    saves = [
        suspension.exited - suspension.requested for suspension in job.suspensions if suspension.exited is not None
    ]
    return SimJob(
        id=job.id,
        submit_s=job.submitted - began,
        runtime_s=max(COMPUTING, work / WHOLE) if job.elastic else computed,
        job_class=spec.job_class,
        user=job.user,
        bag=spec.group,
        gpus_min=job.gpus_min,
        gpus_max=job.gpus_max,
        gpu_mem_bytes=job.gpu_memory.requested_bytes,
        nodes=spec.nodes,
        max_nodes=spec.max_nodes if spec.spread else 1,
        cpus=spec.cpus,
        mem_bytes=spec.mem_bytes,
        grace_s=spec.grace_s,
        save_s=median(saves) if saves else 0.0,
        priority=job.priority,
        weight=job.weight,
        preemptible=job.preemptible,
    )


def _computed(attempt: Attempt, end: float) -> float:
    """Return how many seconds an attempt computed: until its stop request, its exit, or the end of the journal."""
    if attempt.started is None:
        return 0.0
    ended = attempt.end.at if attempt.end is not None else end
    until = attempt.stop.requested if attempt.stop is not None else ended
    return max(0.0, until - attempt.started)


# --- the live measures ---


def _live(jobs: Iterable[Job], began: float, end: float, gpus: int) -> Report:
    metrics = Metrics()
    for job in jobs:
        sim = _sim_job(job, began, end)
        tally = Tally(sim, sim.runtime_s if sim.elastic else sim.runtime_s * max(1.0, sim.gpus_max / WHOLE))
        tally.ended = job.end.at - began if job.end is not None else None
        tally.preemptions, tally.resizes = job.suspending.preemptions, job.suspending.resizes
        for attempt in job.attempts:
            share = attempt.allocation.share / WHOLE
            tally.computed_s += _computed(attempt, end)
            tally.useful_gpu_s += _computed(attempt, end) * share
            tally.held_gpu_s += ((attempt.freed or end) - attempt.placed) * share
        metrics.tallies[job.id] = tally
        metrics.intervals.extend(
            after.placed - before.stop.requested
            for before, after in pairwise(job.attempts)
            if before.stop is not None and before.stop.cause is StopCause.PREEMPTED
        )
    return metrics.report("what happened", gpus, {}, 0.0, 0)
