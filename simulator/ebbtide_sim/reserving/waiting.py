"""How long jobs wait by the time that they ask for, from the journal of a live cluster (seed 002: affine waiting time).

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
"""With fewer starts, nothing is fitted."""
_NOBODY: Final = JobId("")


class FitError(ValueError):
    """Why a journal does not tell how long jobs wait by what they ask for, in one line."""


@dataclass(frozen=True, slots=True)
class ObservedWait:
    """A job asked for ``requested_s`` of running time, and ran after ``waited_s``."""

    requested_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class WaitingTime:
    """Waiting time ≈ ``alpha``·requested + ``gamma`` seconds; ``residual_s`` is the root mean square of what is off."""

    alpha: float
    gamma: float
    starts: int
    residual_s: float


@dataclass(slots=True)
class _Asking:
    """A job: since when it waits for what it asked for (None if it does not), and what it has run in seconds."""

    spec: JobSpec
    asked: float | None
    reserved_s: float | None = None
    started: float | None = None
    ran_s: float = 0.0
    stopped_for: StopCause | None = None

    def requested_s(self) -> float | None:
        """What it asks for from now on: until its time limit or the end of its reservation, whichever is first."""
        ends = [end for end in (self.spec.time_limit_s, self.reserved_s) if end is not None]
        return max(0.0, min(ends) - self.ran_s) if ends else None


@dataclass(slots=True)
class _Queue:
    """Follows a journal."""

    jobs: dict[JobId, _Asking] = field(default_factory=dict)

    def follow(self, event: Event, time: float) -> ObservedWait | None:
        """Take note of ``event``; the start that it is, if a job waited for it that is known to have asked for so long.

        Who starts again after anything but the end of a reservation asked for nothing, and who was held waited for
        its user.
        """
        if isinstance(event, e.JobSubmitted):
            self.jobs[event.job] = _Asking(event.spec, None if event.hold else time)
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
    """The starts in a journal for which a job waited that asked for a time: a limit, or a reservation."""
    queue = _Queue()
    for line in lines:
        start = queue.follow(read_event(line), line.time)
        if start is not None:
            yield start


def fit_waiting(points: Sequence[ObservedWait]) -> WaitingTime:
    """The least squares for ``points`` with gamma >= 0; `FitError` if they do not tell.

    They do not if there are fewer than `MIN_STARTS`, if all asked for the same time, or if those who asked for more did
    not wait longer.
    """
    n = len(points)
    if n < MIN_STARTS:
        raise FitError(f"has {n} starts of jobs that asked for a time, {MIN_STARTS} are needed")
    asked, waited = sum(point.requested_s for point in points) / n, sum(point.waited_s for point in points) / n
    spread = sum((point.requested_s - asked) ** 2 for point in points)
    if spread <= (1e-6 * asked) ** 2 * n:
        raise FitError(f"all {n} starts asked for the same {asked:g} s, which does not tell alpha")
    alpha = sum((point.requested_s - asked) * (point.waited_s - waited) for point in points) / spread
    gamma = waited - alpha * asked
    if gamma < 0:  # the least squares with gamma >= 0 are then those through the origin
        squares = sum(point.requested_s**2 for point in points)
        alpha, gamma = sum(point.requested_s * point.waited_s for point in points) / squares, 0.0
    if alpha <= 0:
        raise FitError(f"who asked for more did not wait longer in {n} starts (alpha would be {alpha:.3g})")
    off = sum((point.waited_s - alpha * point.requested_s - gamma) ** 2 for point in points)
    return WaitingTime(alpha, gamma, n, sqrt(off / n))
