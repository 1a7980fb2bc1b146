"""A discrete-event simulator that drives the same `Cluster` that the master runs.

Nothing here makes scheduling decisions. The simulator passes events to ``Cluster.handle`` and carries out the commands
that it returns, in a world in which attempts start at once (or after the restart cost), compute as
`ebbtide_sim.physics` says, and step aside within their grace period. All events of one moment are passed in together,
and one scheduling pass follows, as in the live master.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, InvariantError
from ebbtide_core.commands import Launch, Record, Stop, WakeAt
from ebbtide_core.estimates.work import LINEAR, Assumptions, Speedup
from ebbtide_core.events import Event
from ebbtide_core.model.constraints import NO_NEEDS, Needs
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import (
    AttemptRef,
    Checkpointed,
    ExitFacts,
    GpuFacts,
    GpuId,
    JobId,
    NodeId,
    SuspendMode,
)
from ebbtide_core.planning.policy import Policy
from ebbtide_core.resources.infeasible import infeasible_refusal

from ebbtide_sim.garbage import rarely_collected
from ebbtide_sim.physics import Dedicated, Physics, SimulatedAttempt
from ebbtide_sim.sources import JobSource, NodeSource, NodesStay
from ebbtide_sim.workload import SimJob
from ebbtide_sim.workloads.nodes import SimNode

GIB: Final = 2**30
DEFAULT_GPU_MEM: Final = 80 * GIB
COMPLETED: Final = ExitFacts()
SAVED_NOTHING: Final = ExitFacts(
    signal=15, stop_requested=True, delivered=True, checkpointed=Checkpointed.NO
)  # the job does not catch the signal
CUT_OFF: Final = ExitFacts(
    signal=9, stop_requested=True, delivered=True, caught=True, killed=True, checkpointed=Checkpointed.NO
)  # the job has not saved by the end of its grace period

_MIXED: Final = Needs(mixed_gpus=True)
_PASS: Final = e.SchedulingDue()
MOST_PASSES: Final = 10_000
"""The most passes at one moment without a job that arrives or ends; a policy that needs more is taken to loop."""

_HEARD, _DONE, _ENDED, _WAKE = range(4)
"""Kinds of heap entries: an attempt starts to compute, a run finishes its work, an attempt has stepped aside, or the
cluster asked for a pass at that time."""

_NOBODY: Final = JobId("")


@frozen(kw_only=True)
class SimulatedWorld:
    """The properties of the simulated world.

    ``restart_cost_s``: seconds from the launch of a later attempt until it computes again. ``resumable``: whether work
    survives a preemption; if not, a job starts again from nothing. ``max_nodes``: the most nodes over which a gang may
    be spread. ``requested``: whether policies see the run time that a job's user asked for, if known, instead of the
    real one.
    """

    speedup: Speedup = LINEAR
    restart_cost_s: float = 0.0
    resumable: bool = True
    max_nodes: int = 4096
    requested: bool = False


class RunObserver(Protocol):
    """An observer of a simulation, called for each event."""

    def submitted(self, now: float, job: SimJob, work: float) -> None:
        """``job`` was submitted, with ``work`` to do in seconds on one GPU."""

    def dropped(self, now: float, job: str, reason: str) -> None:
        """``job`` will not run (again)."""

    def computed(self, job: str, attempt: int, seconds: float, work: float, kept: bool) -> None:
        """An attempt computed for ``seconds`` and did ``work`` (seconds on one GPU), which was ``kept`` or lost."""

    def recorded(self, now: float, event: Event) -> None:
        """The cluster recorded ``event``."""


@dataclass(slots=True, eq=False)
class _Leaving:
    """An attempt that was asked to stop, and has left at ``at``; ``cut_off`` before it has saved.

    It computed for ``computed_s`` and did ``work``, in seconds on one GPU; a ``run`` of None had not begun to.
    """

    attempt: int
    run: SimulatedAttempt | None
    computed_s: float
    work: float
    at: float
    cut_off: bool


@dataclass(slots=True, eq=False)
class _Job:
    """What the simulated world knows of a job and the cluster does not; ``left`` is work, in seconds on one GPU."""

    sim: SimJob
    left: float
    run: SimulatedAttempt | None = None
    starting: int = 0
    """The number of the attempt that was launched and does not compute yet; 0 if none."""
    leaving: _Leaving | None = None


class Simulation:
    """A simulation of one cluster under one policy with one source of jobs."""

    def __init__(
        self,
        nodes: Iterable[SimNode],
        source: JobSource,
        policy: Policy,
        observers: Iterable[RunObserver] = (),
        world: SimulatedWorld | None = None,
        physics: Physics | None = None,
        borrowed: NodeSource | None = None,
        *,
        keep_jobs: bool = False,
    ) -> None:
        self.world = world or SimulatedWorld()
        # The papers assume that every job can suspend, if work survives that at all.
        self.cluster = Cluster(policy, Assumptions(self.world.speedup, can_suspend=self.world.resumable))
        self._pool = self.cluster.state.pools[DEFAULT_POOL]
        self.now = 0.0
        self.events = 0
        self._source = source
        self._observers = tuple(observers)
        self._physics = physics or Dedicated(self.world.speedup)
        self._borrowed = borrowed or NodesStay()
        self._keep_jobs = keep_jobs
        self._heap: list[tuple[float, int, int, JobId, int, SimulatedAttempt | None]] = []
        self._order = 0
        self._jobs: dict[JobId, _Job] = {}
        self._up: list[tuple[JobId, int]] = []
        """Attempts that start to compute at once; without a restart cost, all launched ones."""
        self._ended: list[JobId] = []
        self._changed = False
        self._passes = 0
        for node in nodes:
            self._tell(registration(node))

    # --- time ---

    def run(self, progress: Callable[[float, int], None] | None = None, every: int = 5000) -> None:
        """Simulate until no event is left; call ``progress`` with the time and event count after ``every`` events."""
        due = every
        with rarely_collected():
            while (time := self._next_time()) is not None:
                self.now = max(self.now, time)
                self._moment()
                if progress is not None and self.events >= due:
                    progress(self.now, self.events)
                    due = self.events + every
        self._borrowed.finish()

    def _next_time(self) -> float | None:
        arrival = self._source.next_time()
        change = self._borrowed.next_time(arrival is not None, bool(self.cluster.state.unfinished))
        time = self._heap[0][0] if self._heap else None
        for other in (arrival, change):
            if other is not None and (time is None or other <= time):
                time = other
        return time

    def _moment(self) -> None:
        """Handle all events of this moment, then run one pass; repeat until the passes change nothing."""
        self._passes = 0
        while True:
            woken = self._due()
            for event in self._borrowed.take(self.cluster, self.now):
                self._changed, self._passes = True, 0
                self._tell(event)
            for job in self._source.take(self.now):
                self._submit(job)
            if not (self._changed or woken):
                return
            self._changed = False
            self._passes += 1
            if self._passes > MOST_PASSES:
                raise InvariantError(f"policy {self.cluster.policy!r} never comes to rest at {self.now:g} s")
            self._tell(_PASS)

    def _due(self) -> bool:
        """Carry out the heap entries that are due; return whether one was a wake-up."""
        heap, now, woken = self._heap, self.now, False
        while heap and heap[0][0] <= now:
            _, _, what, job, attempt, run = heapq.heappop(heap)
            if what == _DONE:
                if run is not None and run.ends is not None and run.ends <= now and self._is_running(run):
                    self._complete(run)
            elif what == _HEARD:
                self._compute(job, attempt)
            elif what == _ENDED:
                self._step_aside(job, attempt)
            else:
                woken = True
        up, self._up = self._up, []
        for job, attempt in up:
            self._compute(job, attempt)
        return woken

    def _later(self, time: float, what: int, job: JobId, attempt: int = 0, run: SimulatedAttempt | None = None) -> None:
        self._order += 1
        heapq.heappush(self._heap, (time, self._order, what, job, attempt, run))

    # --- events ---

    def _tell(self, event: Event) -> None:
        """Pass ``event`` to the cluster, and carry out the commands that it returns."""
        self.events += 1
        for command in self.cluster.handle(event, self.now):
            if type(command) is Record:  # most commands are
                for observer in self._observers:
                    observer.recorded(self.now, command.event)
                if type(command.event) is e.JobHeld:
                    self._drop(command.event)
            elif isinstance(command, Launch):
                self._launch(command)
            elif isinstance(command, Stop):
                self._stop(command)
            elif isinstance(command, WakeAt):
                self._later(command.time, _WAKE, _NOBODY)
        while self._ended:
            self._end(self._ended.pop())

    def _submit(self, job: SimJob) -> None:
        speed = 1.0 if job.elastic or not job.gpus_max else self.world.speedup(job.gpus_max)
        work, declared_s = job.runtime_s * speed, job.requested_s if self.world.requested else job.runtime_s
        id = JobId(job.id)
        event = e.JobSubmitted(id, self._spec(job, None if declared_s is None else declared_s * speed), job.user)
        for observer in self._observers:
            observer.submitted(self.now, job, work)
        if (refusal := infeasible_refusal(self.cluster.state.pools[DEFAULT_POOL], event.spec)) is not None:
            self._source.ended(job)
            for observer in self._observers:
                observer.dropped(self.now, job.id, refusal.message)
            return
        self._jobs[id] = _Job(job, work)
        self._changed, self._passes = True, 0
        self._tell(event)

    def _spec(self, job: SimJob, declared: float | None) -> JobSpec:
        return JobSpec(
            command=(job.script,) if job.script else (),
            workdir="/",
            gpus_min=job.gpus_min,
            gpus_max=job.gpus_max,
            gpu_mem_bytes=job.gpu_mem_bytes,
            cpus=job.cpus,
            mem_bytes=job.mem_bytes,
            job_class=job.job_class,
            priority=job.priority,
            grace_s=job.grace_s,
            suspend=SuspendMode.CHECKPOINT if job.preemptible else SuspendMode.NONE,
            weight=job.weight,
            group=job.bag,
            max_nodes=job.max_nodes if job.max_nodes > 1 else self.world.max_nodes,
            spread=job.max_nodes > 1,
            nodes=job.nodes,
            needs=_MIXED if job.mixed_gpus else NO_NEEDS,
            work_s=declared,
            time_limit_s=job.time_limit_s,
            time_auto=job.time_auto,
        )

    # --- commands ---

    def _launch(self, order: Launch) -> None:
        job = self._jobs[order.job]
        job.starting = order.attempt
        delay = self.world.restart_cost_s if order.attempt > 1 else 0.0
        if delay:
            self._later(self.now + delay, _HEARD, order.job, order.attempt)
        else:
            self._up.append((order.job, order.attempt))

    def _compute(self, id: JobId, attempt: int) -> None:
        """Start the attempt, which computes from now on."""
        job = self._jobs.get(id)
        if job is None or job.starting != attempt:
            return  # it was stopped before it could start
        job.starting = 0
        self._tell(e.AttemptStarted(id, attempt, 1))
        allocation = self.cluster.state.jobs[id].attempts[-1].allocation
        job.run = SimulatedAttempt(id, attempt, allocation, job.left, self.now)
        self._expect(self._physics.start(job.run, self.now))
        self._changed = self._changed or bool(self._pool.elastic)

    def _expect(self, runs: Iterable[SimulatedAttempt]) -> None:
        for run in runs:
            assert run.ends is not None
            self._later(run.ends, _DONE, run.job, run.attempt, run)

    def _is_running(self, run: SimulatedAttempt) -> bool:
        job = self._jobs.get(run.job)
        return job is not None and job.run is run

    def _complete(self, run: SimulatedAttempt) -> None:
        job = self._jobs[run.job]
        self._count(job, run, self.now - run.started, self._halt(job, run), kept=True)
        self._report_end(run.job, run.attempt, COMPLETED)

    def _stop(self, order: Stop) -> None:
        """Stop an attempt's computing, and let it exit once it has saved, or at the end of its grace period."""
        job = self._jobs[order.job]
        if (leaving := job.leaving) is not None:
            if leaving.attempt == order.attempt and self.now + order.grace_s < leaving.at:
                leaving.at, leaving.cut_off = self.now + order.grace_s, True
                self._later(leaving.at, _ENDED, order.job, order.attempt)
            return
        run, computed_s, done, needs_s = job.run, 0.0, 0.0, 0.0
        if run is not None:
            if run.attempt != order.attempt:
                return
            computed_s, done = self.now - run.started, self._halt(job, run)
            needs_s = job.sim.steps_aside_s if self.world.resumable else 0.0
        elif job.starting == order.attempt:
            job.starting = 0
        else:
            return
        at = self.now + min(needs_s, order.grace_s)
        job.leaving = _Leaving(order.attempt, run, computed_s, done, at, needs_s > order.grace_s)
        self._later(at, _ENDED, order.job, order.attempt)

    def _halt(self, job: _Job, run: SimulatedAttempt) -> float:
        """End the computing of ``run``, and return the work that it did."""
        done, affected = self._physics.stop(run, self.now)
        job.run = None
        self._expect(affected)
        return done

    def _count(self, job: _Job, run: SimulatedAttempt, computed_s: float, work: float, kept: bool) -> None:
        if kept:
            job.left = max(0.0, job.left - work)
        for observer in self._observers:
            observer.computed(run.job, run.attempt, computed_s, work, kept)

    def _step_aside(self, id: JobId, attempt: int) -> None:
        job = self._jobs.get(id)
        if job is None or (leaving := job.leaving) is None or leaving.attempt != attempt or self.now < leaving.at:
            return  # its grace period was cut short after this time was noted
        job.leaving = None
        saved = self.world.resumable and not leaving.cut_off
        if leaving.run is not None:
            self._count(job, leaving.run, leaving.computed_s, leaving.work, kept=saved)
        if saved:
            self._report_end(id, attempt, _saved(job.sim.steps_aside_s))
        else:
            self._report_end(id, attempt, CUT_OFF if leaving.cut_off else SAVED_NOTHING)

    def _report_end(self, id: JobId, attempt: int, exit: ExitFacts) -> None:
        self._changed = True
        self._tell(e.AttemptExited(id, attempt, exit, freed=True))
        job = self.cluster.state.jobs[id]
        if job.end is not None:
            self._end(id)

    def _drop(self, event: e.JobHeld) -> None:
        """Drop a job that the system holds, because no user releases it in a simulation."""
        for observer in self._observers:
            observer.dropped(self.now, event.job, event.reason)
        self._ended.append(event.job)

    def _end(self, id: JobId) -> None:
        """End the job in the simulated world."""
        self._passes = 0
        self._source.ended(self._jobs[id].sim)
        job = self.cluster.state.jobs[id]
        if job.end is not None and not self._keep_jobs:
            del self._jobs[id]
            self.events += 1
            self.cluster.replay(e.JobRetired(id), self.now)  # retiring a job leads to no commands


def _saved(seconds: float) -> ExitFacts:
    return ExitFacts(
        exit_code=85,
        stop_requested=True,
        delivered=True,
        caught=True,
        acknowledged=True,
        checkpointed=Checkpointed.YES,
        checkpoint_s=seconds,
    )


def registration(node: SimNode) -> e.NodeRegistered:
    """Return the registration event of a simulated node."""
    gpus = [
        GpuFacts(GpuId(f"{node.name}:{i}"), i, kind.model or "simulated", kind.mem_bytes or DEFAULT_GPU_MEM)
        for i, kind in enumerate(node.kinds)
    ]
    return e.NodeRegistered(
        node=NodeId(node.name),
        hostname=node.name,
        boot_id="simulated",
        gpus=tuple(gpus),
        cpus=node.cpus,
        mem_bytes=node.mem_bytes,
        checkpoint_root_id="simulated",
        gpu_backend="simulated",
        version="",
        known=tuple[AttemptRef, ...](),
    )
