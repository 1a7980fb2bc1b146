"""Reads a live cluster's journal: its measures, and its jobs as a workload to simulate under another policy."""

import json
import math
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, TextIO

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.events.codec import UnknownEventError, decode_event
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.model.types import WHOLE, JobId, NodeId, StopCause
from ebbtide_core.policies.fifo import Fifo
from ebbtide_core.state import ClusterState

from ebbtide_sim.metrics import Metrics, Report, Tally
from ebbtide_sim.setup import parse_nodes
from ebbtide_sim.workload import SimJob, Workload, WorkloadError
from ebbtide_sim.workloads.nodes import GpuKind, SimNode

SCHEMA_VERSION: Final = 1
"""The schema version of the journal; newer ones are refused."""
SQLITE: Final = b"SQLite format 3\0"
"""The first bytes of a journal file."""
STDIN: Final = Path("-")
"""Stands for standard input where the path of an export is expected."""
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
    """Yield the events of an export, one JSON object ``{sequence, time, kind, body}`` per line; ``-`` is stdin."""
    try:
        with nullcontext(sys.stdin) if path == STDIN else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                yield _exported(line, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _exported(line: str, where: str) -> RecordedEvent:
    entry = _body(line, where)
    try:
        return RecordedEvent(int(entry["sequence"]), float(entry["time"]), str(entry["kind"]), dict(entry["body"]))
    except (KeyError, TypeError, ValueError):
        raise WorkloadError(f"{where}: is not an object with sequence, time, kind and body") from None


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
class JournalSpan:
    """A part of a journal's time, from ``since`` to ``until`` in Unix seconds; infinite: to the last event."""

    since: float = 0.0
    until: float = math.inf


WHOLE_JOURNAL: Final = JournalSpan()


@dataclass(frozen=True, slots=True)
class RecordedPast:
    """What a journal tells: nodes, jobs as a workload, the median restart cost in seconds, and the live measures.

    ``nodes`` are those at the end, perhaps none, and ``largest`` is the largest of them, or of all that there were.
    ``began`` and ``ended`` are the first and the last moment of it, in Unix seconds.
    """

    nodes: tuple[SimNode, ...]
    largest: SimNode
    workload: Workload
    restart_cost_s: float
    live: Report
    began: float
    ended: float

    def machines(self, text: str | None) -> tuple[SimNode, ...]:
        """Return the nodes, or with ``text`` others with GPUs like the largest: ``4x8`` for 4 with 8 GPUs each.

        Raise `WorkloadError` if the text is wrong, or no node was left.
        """
        if not text:
            if not self.nodes:
                raise WorkloadError("all nodes of the journal had ended by then: name others with --nodes")
            return self.nodes
        count, gpus = parse_nodes(text)
        return tuple(replace(self.largest, name=f"node{number}", gpus=gpus, unlike=()) for number in range(count))


def reconstruct(lines: Iterable[RecordedEvent], span: JournalSpan = WHOLE_JOURNAL) -> RecordedPast:
    """Fold a journal, and derive each job's requests and run time; raise `WorkloadError` if it has no jobs or nodes.

    A rigid job's run time is the time that it computed. An elastic job's is its work in seconds on one GPU, if speed
    grows linearly with GPUs. What was lost, because no checkpoint had it when an attempt ended, is no part of it. Jobs
    that did not finish count with what they computed; jobs that never ran are left out.
    Only what was in ``span`` counts: a job that was there before arrives as the span begins, with what it still
    computed, and nodes are those at its end, without those that had ended.
    """
    folded = _folded(lines, span)
    state, end = folded.state, folded.end
    there = [job for job in state.jobs.values() if job.end is None or job.end.at >= span.since]
    if not there:
        raise WorkloadError("the journal has no jobs" if span == WHOLE_JOURNAL else "the journal has no jobs then")
    known = [_node(facts) for facts in folded.machines.facts.values()]
    if not known:
        raise WorkloadError("the journal has no nodes: nothing could run")
    nodes = tuple(_node(node.facts) for node in state.nodes.values() if not node.has_ended(end))
    # A job was placed before it was submitted if the clock was ahead then, and is set back since.
    began = max(span.since, min(min([job.submitted, *[attempt.placed for attempt in job.attempts]]) for job in there))
    ran = [job for job in there if any(_ran(attempt, began, end) for attempt in job.attempts)]
    never = len(there) - len(ran)
    jobs = sorted((_sim_job(job, folded, began) for job in ran), key=lambda job: job.submit_s)
    restarts = [
        attempt.first_started - attempt.placed
        for job in ran
        for attempt in job.attempts[1:]
        if attempt.first_started is not None
    ]  # fmt: skip
    notes = _notes(folded, ran, began)
    if gone := len(known) - len(nodes):
        notes = (*notes, f"{gone} nodes had ended, or were removed: nothing is simulated on them")
    return RecordedPast(
        nodes,
        max(nodes or known, key=lambda node: (node.gpus, node.gpu_mem_bytes, node.cpus, node.mem_bytes)),
        Workload("journal", jobs, {"never ran": never} if never else {}, notes),
        median(restarts) if restarts else 0.0,
        _live(ran, folded, began, nodes),
        began,
        end,
    )


def _notes(folded: "_Folded", ran: list[Job], began: float) -> tuple[str, ...]:
    """Return what was assumed, in words."""
    pools = sorted({job.pool for job in ran} | {node.facts.pool for node in folded.state.nodes.values()})
    counted = (
        (
            sum(_came(job) < began for job in ran),
            "were submitted before: they arrive at the beginning, with what they still computed",
        ),
        (
            sum(folded.kept_back.until.get(job.id, 0.0) > began for job in ran),
            "had to wait for another job, a hold, or the limit of an array: simulated, they do not",
        ),
        (
            sum(job.end is None or job.end.state.value != "COMPLETED" for job in ran),
            "were not completed: they count with what they computed",
        ),
        (
            sum(job.eligibility.constrained for job in ran),
            "could not run on every node: they run wherever there is room",
        ),
        (
            sum((job.priority, job.weight) != (job.spec.priority, job.spec.weight) for job in ran),
            "were given another priority or weight: they have the last one from the beginning",
        ),
    )
    notes = [f"the pools {', '.join(pools)} are taken for one"] if len(pools) > 1 else []
    return (*notes, *(f"{count} jobs {what}" for count, what in counted if count))


@dataclass(frozen=True, slots=True)
class _Folded:
    """The state at the end of a span, at Unix time ``end``, with retired and removed jobs kept.

    ``before`` has how often each job had been preempted and resized as the span began, of those that were there.
    """

    state: ClusterState
    end: float
    before: Mapping[str, tuple[int, int]]
    computing: "_Stretches"
    holding: "_Stretches"
    asked: Mapping[tuple[JobId, int], float]
    """When each attempt was first asked to stop, since it ran last."""
    machines: "_Machines"
    kept_back: "_KeptBack"

    def computed_s(self, job: Job, attempt: Attempt, began: float) -> float:
        """Return how many seconds after ``began`` an attempt computed, before it was asked to stop."""
        return self.computing.seconds(job, attempt, began, self.end)

    def kept_s(self, job: Job, attempt: Attempt, began: float) -> float:
        """Return the same, without what its job had to do again because no checkpoint had it."""
        redone_since = attempt.end.redone_since if attempt.end is not None else None
        cut = math.inf if redone_since is None else redone_since
        return self.computing.seconds(job, attempt, began, self.end, cut)


@dataclass(slots=True)
class _Stretches:
    """From when to when each attempt did something, by job and attempt: a swapped one did it several times."""

    ended: dict[tuple[JobId, int], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    begun: dict[JobId, tuple[int, float]] = field(default_factory=dict)

    def note(self, job: JobId, attempt: Attempt | None, time: float) -> None:
        """Note which attempt of the job does it from ``time`` on; None: none."""
        number, begun = attempt.number if attempt is not None else 0, self.begun.get(job)
        if begun is not None and begun[0] != number:
            self.ended[job, begun[0]].append((begun[1], time))
            del self.begun[job]
        if number and job not in self.begun:
            self.begun[job] = number, time

    def set_back(self, now: float, by_s: float) -> None:
        """Correct, as the cluster does, what began by a clock that was ahead, set back by ``by_s`` to ``now``."""
        self.begun.update({job: (number, since - by_s) for job, (number, since) in self.begun.items() if since > now})

    def seconds(self, job: Job, attempt: Attempt, began: float, end: float, cut: float = math.inf) -> float:
        """Return for how long an attempt did it after ``began`` and before ``cut``; what it still does ends at ``end``.

        What has ended may have done so after ``end``, by a clock that was ahead then.
        """
        stretches, begun = list(self.ended.get((job.id, attempt.number), ())), self.begun.get(job.id)
        if begun is not None and begun[0] == attempt.number:
            stretches.append((begun[1], end))
        return sum(max(0.0, min(until, cut) - max(since, began)) for since, until in stretches)


@dataclass(slots=True)
class _Machines:
    """The nodes of a journal: what each said of itself last, and from when to when it was there."""

    facts: dict[NodeId, e.NodeRegistered] = field(default_factory=dict)
    since: dict[NodeId, float] = field(default_factory=dict)
    stays: dict[NodeId, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def note(self, event: Event, time: float) -> None:
        """Note that a node came or went, if the event says so."""
        match event:
            case e.NodeRegistered(node=node):
                self.facts[node] = event
                self.since.setdefault(node, time)
            case e.NodeLost(node=node) | e.NodeConfirmedDead(node=node) | e.NodeRemoved(node=node):
                if node in self.since:
                    self.stays[node].append((self.since.pop(node), time))
            case _:
                pass

    def gpu_s(self, but: Container[str], began: float, end: float) -> float:
        """Return the GPU-seconds between ``began`` and ``end`` of all nodes that have gone, ``but`` these."""
        return sum(
            len(self.facts[node].gpus) * max(0.0, min(until, end) - max(since, began))
            for node, stays in self.stays.items()
            if node not in but
            for since, until in stays
        )


@dataclass(slots=True)
class _KeptBack:
    """The jobs that may not start, whatever is free, and until when others might not; ``--begin`` is none of it."""

    now: set[JobId] = field(default_factory=set)
    until: dict[JobId, float] = field(default_factory=dict)

    def note(self, job: Job, time: float) -> None:
        """Note whether the job is kept back after an event about it at ``time``."""
        admission = job.admission
        if job.live is not None:
            if job.id in self.now:
                self.now.remove(job.id)
                self.until[job.id] = time
        elif job.held_by is not None or (admission is not None and (admission.after or admission.wants)):
            self.now.add(job.id)


def _folded(lines: Iterable[RecordedEvent], span: JournalSpan) -> _Folded:
    cluster, end = Cluster(Fifo()), 0.0
    computing, holding, machines = _Stretches(), _Stretches(), _Machines()
    asked: dict[tuple[JobId, int], float] = {}
    kept_back = _KeptBack()
    before: dict[str, tuple[int, int]] | None = None
    for line in lines:
        if before is None and line.time >= span.since:
            before = _counts(cluster.state)
        if line.time > span.until:
            break
        event = read_event(line)
        end = line.time
        if isinstance(event, e.JobRetired | e.JobRemoved):
            continue
        cluster.replay(event, line.time)
        machines.note(event, line.time)
        if isinstance(event, e.ClockSetBack):
            computing.set_back(line.time, event.by_s)
            holding.set_back(line.time, event.by_s)
        if (job := cluster.state.jobs.get(getattr(event, "job", JobId("")))) is not None:
            kept_back.note(job, line.time)
            live = job.live
            computes = live is not None and live.started is not None and live.stop is None
            computing.note(job.id, live if computes else None, line.time)
            holding.note(job.id, job.holding, line.time)
            if live is not None and live.stop is not None:
                asked.setdefault((job.id, live.number), line.time)
            elif live is not None:
                asked.pop((job.id, live.number), None)  # it is back from host memory
    end = max(end, span.since) if span.until == math.inf else span.until
    before = _counts(cluster.state) if before is None else before
    return _Folded(cluster.state, end, before, computing, holding, asked, machines, kept_back)


def _counts(state: ClusterState) -> dict[str, tuple[int, int]]:
    """Return how often each job that is there was preempted and resized."""
    there = state.unfinished.values()
    return {job.id: (job.suspending.preemptions, job.suspending.resizes) for job in there}


def read_event(line: RecordedEvent) -> Event:
    """Decode the event of a line; raise `WorkloadError` if it cannot be read."""
    try:
        return decode_event(line.kind, line.body)
    except (UnknownEventError, KeyError, TypeError, ValueError):
        raise WorkloadError(f"event {line.sequence} of the journal, a {line.kind}, cannot be read") from None


def _came(job: Job) -> float:
    """Return the Unix time at which the job was submitted, or from which on it might start."""
    return max(job.submitted, job.spec.begin_at)


def _node(facts: e.NodeRegistered) -> SimNode:
    kinds = tuple([GpuKind(gpu.model, gpu.mem_bytes) for gpu in facts.gpus])
    largest = max(kinds, key=lambda kind: kind.mem_bytes, default=GpuKind("", 0))
    return SimNode(
        name=facts.node,
        gpus=len(kinds),
        gpu_mem_bytes=largest.mem_bytes,
        cpus=facts.cpus,
        mem_bytes=facts.mem_bytes,
        model=largest.model,
        unlike=kinds if len(set(kinds)) > 1 else (),
    )


def _sim_job(job: Job, folded: _Folded, began: float) -> SimJob:
    spec = job.spec
    kept = [(folded.kept_s(job, attempt, began), attempt.allocation.share) for attempt in job.attempts]
    computed, work = sum(seconds for seconds, _ in kept), sum(seconds * max(1, share) for seconds, share in kept)
    saves = [
        suspension.exited - suspension.requested for suspension in job.suspensions if suspension.exited is not None
    ]
    return SimJob(
        id=job.id,
        submit_s=max(0.0, _came(job) - began),
        runtime_s=max(COMPUTING, work / WHOLE if job.elastic else computed),
        job_class=spec.job_class,
        user=job.user,
        bag=spec.group,
        gpus_min=job.gpus_min,
        gpus_max=job.gpus_max,
        gpu_mem_bytes=job.gpu_memory.requested_bytes,
        nodes=spec.nodes,
        max_nodes=spec.max_nodes if spec.spread else 1,
        mixed_gpus=spec.needs.mixed_gpus,
        cpus=spec.cpus,
        mem_bytes=spec.mem_bytes,
        grace_s=spec.grace_s,
        save_s=median(saves) if saves else 0.0,
        priority=job.priority,
        weight=job.weight,
        preemptible=job.preemptible,
    )


def _ran(attempt: Attempt, began: float, end: float) -> bool:
    """Whether an attempt ran after ``began``."""
    return attempt.first_started is not None and (attempt.end.at if attempt.end is not None else end) >= began


# --- the live measures ---


def _live(jobs: Sequence[Job], folded: _Folded, began: float, nodes: Sequence[SimNode]) -> Report:
    metrics, end = Metrics(), folded.end
    for job in jobs:
        sim = _sim_job(job, folded, began)
        tally = Tally(sim, sim.runtime_s if sim.elastic else sim.runtime_s * (sim.gpus_max / WHOLE or 1.0))
        tally.ended = job.end.at - began if job.end is not None else None
        preempted, resized = folded.before.get(job.id, (0, 0))
        tally.preemptions = job.suspending.preemptions - preempted
        tally.resizes = job.suspending.resizes - resized
        for attempt in job.attempts:
            share, kept_s = attempt.allocation.share / WHOLE, folded.kept_s(job, attempt, began)
            tally.computed_s += kept_s
            tally.lost_s += folded.computed_s(job, attempt, began) - kept_s
            tally.useful_gpu_s += kept_s * share
            tally.held_gpu_s += folded.holding.seconds(job, attempt, began, end) * share
        metrics.tallies[job.id] = tally
        metrics.intervals.extend(
            after.placed - asked
            for before, after in pairwise(job.attempts)
            if before.stop is not None
            and before.stop.cause is StopCause.PREEMPTED
            and (asked := folded.asked[job.id, before.number]) >= began
        )
    last = max((end if job.end is None else job.end.at for job in jobs), default=began)
    lent_gpu_s = folded.machines.gpu_s({node.name for node in nodes}, began, last)
    gpus = sum(node.gpus for node in nodes)
    return metrics.report("what happened", gpus, {}, 0.0, 0, lent_gpu_s, until=last - began)
