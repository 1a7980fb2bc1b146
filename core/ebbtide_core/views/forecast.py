"""Forecasts when a waiting job starts, by letting a copy of the cluster go on under the same policies.

Running jobs end when their progress, earlier runs or time limits say so. A job that is asked to stop takes as long as
it was measured to need, or else its grace period. No new jobs are submitted. A job whose end nothing predicts is
assumed never to end, so a job that waits for it has no known start.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ebbtide_core import events as e
from ebbtide_core.commands import Command, Launch, Record, Resume, Stop, WakeAt
from ebbtide_core.estimates.work import EstimateSource, expected_end, remaining, work_done
from ebbtide_core.events import Event
from ebbtide_core.job.job import Job
from ebbtide_core.job.swap_causes import is_swapped_for
from ebbtide_core.model.types import Allocation, Checkpointed, ExitFacts, GpuId, HeldBy, JobId, JobState
from ebbtide_core.planning.draft import jobs_text

if TYPE_CHECKING:
    from ebbtide_core.cluster import Cluster

MOST_JOBS: Final = 2000
"""Unfinished jobs of a cluster that is copied; with more, there is no forecast."""
MOST_PASSES: Final = 2000
"""Passes after which a forecast gives up, because the start is too far ahead."""

_ENDED: Final = ExitFacts()
_ASIDE: Final = ExitFacts(stop_requested=True, delivered=True, acknowledged=True, checkpointed=Checkpointed.YES)


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a job starts (Unix seconds, None if that is not known), how that is known, and the room that it gets.

    ``after`` are the jobs that have to leave its GPUs first; ``preempted`` are the jobs that are stopped for it.
    """

    start: float | None
    basis: str
    allocation: Allocation | None = None
    after: tuple[JobId, ...] = ()
    preempted: tuple[JobId, ...] = ()


def fork(cluster: "Cluster") -> "Cluster":
    """Return a copy of the cluster that can go on independently. It shares the ended jobs, which must not change."""
    state, memo = cluster.state, dict[int, object]()
    jobs = memo[id(state.jobs)] = dict(state.jobs)
    memo[id(state.operations)] = memo[id(state.requests)] = {}
    for id_, job in state.unfinished.items():
        memo[id(job.story)] = []
        jobs[id_] = deepcopy(job, memo)
    memo[id(cluster._look)] = None  # because what the copy goes through does not happen
    copy = deepcopy(cluster, memo)
    copy._wake_at = None  # because a timer that was set for the original does not wake the copy
    return copy


def forecast(cluster: "Cluster", job: JobId, now: float, changes: Iterable[Event] = ()) -> Forecast:
    """Let ``cluster``, a `fork`, go on from ``now`` with ``changes`` until ``job`` is placed; this uses the fork up."""
    return _Ahead(cluster, [job], now).look(changes)[job]


def forecast_all(cluster: "Cluster", jobs: Iterable[JobId], now: float) -> dict[JobId, Forecast]:
    """Let ``cluster``, a `fork`, go on from ``now`` until all ``jobs`` have been placed; this uses the fork up."""
    return _Ahead(cluster, jobs, now).look(())


class _Ahead:
    """A simulation in which every job ends and stops as expected."""

    def __init__(self, cluster: "Cluster", jobs: Iterable[JobId], now: float) -> None:
        self._cluster = cluster
        self._sought = dict.fromkeys(jobs)
        self._found: dict[JobId, Forecast] = {}
        self._now = now
        self._heap: list[tuple[float, int, Event]] = []
        self._order = 0
        self._ends: dict[JobId, Event] = {}
        """The expected end of each job since it ran last; an attempt that was swapped out has another one then."""
        self._bounds = 0
        self._unknown: dict[JobId, None] = {}
        self._held = self._holders()
        self._preempted: dict[JobId, list[JobId]] = defaultdict(list)
        self._placed: dict[JobId, Allocation] = {}
        self._booked: dict[JobId, str] = {}
        for other in list(cluster.state.unfinished.values()):
            self._expect(other)

    def look(self, changes: Iterable[Event]) -> dict[JobId, Forecast]:
        """Return the forecast of each job that is sought."""
        for change in changes:
            self._carry_out(self._cluster.handle(change, self._now))
        for _ in range(MOST_PASSES):
            self._carry_out(self._cluster.handle(e.SchedulingDue(), self._now))
            for job, allocation in self._placed.items():
                self._found[job] = self._seen(job, allocation)
                del self._sought[job]
            self._placed.clear()
            if not self._sought:
                return self._found
            if not self._heap:
                return self._found | {job: Forecast(None, self._why_never(job)) for job in self._sought}
            for job, kept_out in self._cluster.state.blocked_by_bookings.items():
                if job in self._sought:
                    self._booked[job] = self._cluster.state.bookings.obstacle(kept_out)
            self._now = max(self._now, self._heap[0][0])
            while self._heap and self._heap[0][0] <= self._now:
                event = heapq.heappop(self._heap)[2]
                if not self._is_void(event):
                    self._carry_out(self._cluster.handle(event, self._now))
        far = Forecast(None, f"not known: too far ahead, behind {MOST_PASSES} other changes")
        return self._found | dict.fromkeys(self._sought, far)

    # --- expected events ---

    def _expect(self, job: Job) -> None:
        """Schedule when ``job`` ends, or when it has left if it was asked to stop."""
        state = self._cluster.state
        left = remaining(job, self._now, state.history, state.speedup)
        if left is not None:
            # Fix the job's work to the present estimate, which holds however often the job is stopped and resumed.
            self._bounds += left.source is EstimateSource.TIME_LIMIT
            job.spec = replace(job.spec, work_s=work_done(job, self._now, state.speedup) + left.work_s)
        live = job.live
        if live is None:
            return
        if live.stop is not None:
            self._leave(job, live.stop.requested)
        elif live.started is None:
            self._start(job)
        else:
            self._work(job)

    def _start(self, job: Job) -> None:
        attempt = job.attempts[-1]
        self._at(self._now, e.AttemptStarted(job.id, attempt.number, 0, swaps=attempt.swaps))

    def _work(self, job: Job) -> None:
        end = expected_end(job, self._cluster.state.history, self._cluster.state.speedup)
        if end is None:
            self._unknown[job.id] = None
        else:
            self._ends[job.id] = e.AttemptExited(job.id, job.attempts[-1].number, _ENDED, freed=True)
            self._at(end, self._ends[job.id])

    def _leave(self, job: Job, asked: float) -> None:
        """Schedule when ``job`` has left: it ends, or moves to host memory, where it stays until it can come back."""
        attempt = job.attempts[-1]
        stop = attempt.stop
        assert stop is not None
        swapped = is_swapped_for(job, stop.cause)
        if swapped and attempt.off_gpu:
            return
        needs = stop.grace_s if job.suspending.save_s is None else min(job.suspending.save_s, stop.grace_s)
        if attempt.started is None:  # an attempt that has not started has nothing to save
            needs = 0.0
        if swapped and attempt.first_started is not None:
            if attempt.started is None:  # it is on its way back, and leaves again once it is there
                self._start(job)
            most_bytes = sum(gpu.mem_bytes for piece in attempt.allocation for gpu in piece.gpus)
            swapped_out = e.AttemptSwapped(job.id, attempt.number, attempt.swaps + 1, most_bytes, needs)
            self._at(max(self._now, asked + needs), swapped_out)
            return
        exit = replace(_ASIDE, checkpoint_s=needs)
        self._at(asked + needs, e.AttemptExited(job.id, attempt.number, exit, freed=True))

    def _is_void(self, event: Event) -> bool:
        """Return whether ``event`` is the end of an attempt that was stopped by then, or only a time for a pass."""
        if isinstance(event, e.SchedulingDue):
            return True
        if not isinstance(event, e.AttemptExited) or event.exit is not _ENDED:
            return False
        live = self._cluster.state.jobs[event.job].live
        return live is None or live.stop is not None or self._ends.get(event.job) is not event

    def _at(self, time: float, event: Event) -> None:
        self._order += 1
        heapq.heappush(self._heap, (time, self._order, event))

    # --- the cluster's commands ---

    def _carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Record(event):
                    self._note(event)
                case Launch() | Resume():
                    self._start(self._cluster.state.jobs[command.job])
                case Stop():
                    self._leave(self._cluster.state.jobs[command.job], self._now)
                case WakeAt(time=time):
                    self._at(time, e.SchedulingDue())
                case _:
                    pass

    def _note(self, event: Event) -> None:
        match event:
            case e.AttemptStarted():
                self._work(self._cluster.state.jobs[event.job])
            case e.AttemptSwapped():
                self._ends.pop(event.job, None)
            case e.AttemptPlaced() if event.job in self._sought:
                self._placed[event.job] = event.allocation
            case e.ReturnRequested() if event.job in self._sought:
                self._placed[event.job] = self._cluster.state.jobs[event.job].attempts[-1].allocation
            case e.StopRequested(for_job=asking) if asking is not None and asking in self._sought:
                self._preempted[asking].append(event.job)
            case _:
                pass

    # --- the result ---

    def _holders(self) -> dict[GpuId, list[JobId]]:
        holders: dict[GpuId, list[JobId]] = {}
        for job in self._cluster.state.unfinished.values():
            if (attempt := job.holding) is not None:
                for gpu in attempt.allocation.gpu_ids:
                    holders.setdefault(gpu, []).append(job.id)
        return holders

    def _seen(self, job: JobId, placed: Allocation) -> Forecast:
        jobs = self._cluster.state.jobs
        before = dict.fromkeys(id for gpu in placed.gpu_ids for id in self._held.get(gpu, ()) if id != job)
        after = tuple(id for id in before if jobs[id].holding is None)
        smaller = [id for id in before if id not in after and self._holds_none_of(jobs[id], placed)]
        basis = self._basis(job, after, smaller)
        return Forecast(self._now, basis, placed, after, tuple(self._preempted.get(job, ())))

    def _holds_none_of(self, job: Job, placed: Allocation) -> bool:
        holding = job.holding
        return holding is None or set(holding.allocation.gpu_ids).isdisjoint(placed.gpu_ids)

    def _basis(self, job: JobId, after: tuple[JobId, ...], smaller: list[JobId]) -> str:
        if job in self._preempted:
            return "once the jobs that it preempts are suspended"
        if smaller:
            return f"once {jobs_text(smaller)} {'has' if len(smaller) == 1 else 'have'} given up GPUs"
        if not after:
            return f"once this is over: {self._booked[job]}" if job in self._booked else "there is room"
        return "at the latest, by time limits" if self._bounds else "by progress and earlier runs"

    def _why_never(self, sought: JobId) -> str:
        job = self._cluster.state.jobs[sought]
        if job.held_by is not None:
            verb = "resume" if job.state is JobState.SUSPENDED and job.held_by is HeldBy.USER else "release"
            return f"not before 'ebb {verb} {job.id}': {job.reason}"
        running = [id for id in self._unknown if self._cluster.state.jobs[id].live is not None]
        if running:
            return f"not known: no estimate says when {jobs_text(running)} {'ends' if len(running) == 1 else 'end'}"
        return f"not known: {job.reason}"
