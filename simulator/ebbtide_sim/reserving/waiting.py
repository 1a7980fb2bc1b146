"""Fits how long jobs wait to the time that they request, from a live cluster's journal (seed 002: affine waiting).

The seed fits waiting time ≈ alpha·requested + gamma to the log of a supercomputer; alpha and gamma are then the prices
of a reservation whose cost is the time until the job is done (with beta = 1).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import JobId, StopCause

from ebbtide_sim.replay import RecordedEvent, read_event

MIN_STARTS: Final = 10
"""The fewest starts with which a fit is made."""
_NOBODY: Final = JobId("")


class FitError(ValueError):
    """Raised, with the reason in one line, if a journal does not determine the fit."""


@dataclass(frozen=True, slots=True)
class ObservedWait:
    """A job that requested ``requested_s`` of running time, and started after ``waited_s``."""

    requested_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class WaitingTime:
    """The fit: waiting time ≈ ``alpha``·requested + ``gamma`` seconds.

    ``residual_s`` is the root mean square of the residuals, over ``starts`` points.
    """

    alpha: float
    gamma: float
    starts: int
    residual_s: float


@dataclass(slots=True)
class _Asking:
    """A job: since when it waits for its request (None if it does not), and how long it has run, in seconds."""

    spec: JobSpec
    asked: float | None
    reserved_s: float | None = None
    started: float | None = None
    ran_s: float = 0.0
    stopped_for: StopCause | None = None

    def requested_s(self) -> float | None:
        """Return the seconds left until its time limit or the end of its reservation, whichever is first; else None."""
        ends = [end for end in (self.spec.time_limit_s, self.reserved_s) if end is not None]
        return max(0.0, min(ends) - self.ran_s) if ends else None


@dataclass(slots=True)
class _Queue:
    """The jobs of a journal that is followed event by event."""

    jobs: dict[JobId, _Asking] = field(default_factory=dict)

    def follow(self, event: Event, time: float) -> ObservedWait | None:
        """Apply ``event``; return the wait if it is the start of a job that waited for a known requested time.

        A job that starts again after anything but the end of a reservation requested nothing, and a job that was held,
        or that depends on others, did not wait for room alone; none of these counts.
        """
        if isinstance(event, e.JobSubmitted):
            waits_for_others = event.hold or event.spec.after
            self.jobs[event.job] = _Asking(event.spec, None if waits_for_others else max(time, event.spec.begin_at))
            return None
        job = self.jobs.get(getattr(event, "job", _NOBODY))
        if job is None:
            return None
        match event:
            case e.HoldRequested() | e.SuspendRequested() | e.JobHeld():
                job.asked = job.stopped_for = None
            case e.AttemptPlaced():
                job.reserved_s, job.started, job.stopped_for = event.reserved_s, None, None
            case e.StopRequested():
                job.stopped_for = event.cause
            case e.AttemptStarted():
                return _begin(job, time)
            case e.AttemptExited():
                _end(job, time)
            case _:
                pass
        return None


def _begin(job: _Asking, time: float) -> ObservedWait | None:
    asked, requested = job.asked, job.requested_s()
    job.asked, job.started = None, time
    return None if asked is None or requested is None else ObservedWait(requested, max(0.0, time - asked))


def _end(job: _Asking, time: float) -> None:
    if job.started is not None:
        job.ran_s += max(0.0, time - job.started)
    job.started = None
    if job.stopped_for is StopCause.RESERVATION:
        job.asked = time


def starts(lines: Iterable[RecordedEvent]) -> Iterator[ObservedWait]:
    """Yield the waits of a journal before starts of jobs that requested a time: a limit, or a reservation."""
    queue = _Queue()
    for line in lines:
        start = queue.follow(read_event(line), line.time)
        if start is not None:
            yield start


def fit_waiting(points: Sequence[ObservedWait]) -> WaitingTime:
    """Fit ``points`` by least squares with gamma >= 0.

    Raise `FitError` if there are fewer than `MIN_STARTS`, if all jobs requested the same time, or if jobs that
    requested more did not wait longer.
    """
    n = len(points)
    if n < MIN_STARTS:
        raise FitError(f"has {n} starts of jobs that asked for a time, {MIN_STARTS} are needed")
    asked, waited = sum(point.requested_s for point in points) / n, sum(point.waited_s for point in points) / n
    spread = sum((point.requested_s - asked) ** 2 for point in points)
    if spread <= (1e-6 * asked) ** 2 * n:
        raise FitError(f"all {n} starts asked for the same {asked:g} s, which does not determine alpha")
    alpha = sum((point.requested_s - asked) * (point.waited_s - waited) for point in points) / spread
    gamma = waited - alpha * asked
    if gamma < 0:  # the constrained fit is then the one through the origin
        squares = sum(point.requested_s**2 for point in points)
        alpha, gamma = sum(point.requested_s * point.waited_s for point in points) / squares, 0.0
    if alpha <= 0:
        raise FitError(f"longer requests did not wait longer in {n} starts (alpha would be {alpha:.3g})")
    off = sum((point.waited_s - alpha * point.requested_s - gamma) ** 2 for point in points)
    return WaitingTime(alpha, gamma, n, sqrt(off / n))
