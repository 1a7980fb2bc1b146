"""Follows from the journal who had which GPU from when to when, what jobs did meanwhile, and why that ended.

The timeline folds events into a cluster state of its own, and looks after each event at what it changed. It says where
each span begins and ends; the ledger (`ebbtide_core.views.ledger`) adds the seconds of the same phases up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.dispatch import apply
from ebbtide_core.events import Event
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.job.outcome import read_exit
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import Allocation, GpuId, JobId, NodeId
from ebbtide_core.views.phases import Life, Rest, Stage, life_of, rest_of, stage_of, state_to_fold_into

SPANS_OF_A_LINE: Final = 1 << 20
"""Spans that one line of the journal can begin; the key of a span is the line's number times this, and more."""
_NO_COMMAND: Final = ("-",)


@frozen
class JobSpan:
    """A job in one condition: it waits, or its attempt has ``allocation`` and starts, computes or leaves.

    ``attempt`` is the number of its newest attempt, 0 before the first.
    """

    job: JobId
    user: str
    name: str
    pool: str
    attempt: int
    doing: Life | Stage
    allocation: Allocation | None = None


@frozen
class RestSpan:
    """A GPU in one condition: whether what is not allocated of it could be; ``number`` is its index on its node."""

    node: NodeId
    gpu: GpuId
    number: int
    pool: str
    rest: Rest


@frozen
class BookedSpan:
    """A GPU that is booked for ``user``."""

    booking: str
    user: str
    node: NodeId
    gpu: GpuId


Subject = JobSpan | RestSpan | BookedSpan


@frozen
class Began:
    """A span began at Unix time ``at``, or will; ``key`` is the same whenever the journal is read."""

    key: int
    at: float
    what: Subject
    until: float | None = None
    """When it will end, if that is known."""


@frozen
class Ended:
    """A span ended at Unix time ``at``, and ``why`` in a few words that everybody may read, or empty."""

    key: int
    at: float
    what: Subject
    why: str = ""


@frozen
class Unnamed:
    """A user removed a job: nothing is told of it any more but whose it was and when it had what."""

    job: JobId


Change = Began | Ended | Unnamed


@dataclass(slots=True)
class _Open:
    """The spans of one job that go on: one of its life, unless it is placed, and one of its attempt on GPUs."""

    job: Job
    life: Began | None = None
    stage: Began | None = None


@dataclass(slots=True)
class _Keys:
    """Gives out the keys of the spans that begin with one line."""

    line: int = 0
    given: int = 0

    def next(self) -> int:
        self.given += 1
        return self.line * SPANS_OF_A_LINE + self.given


@dataclass(slots=True)
class _Booked:
    """The spans of one booking, which ends at Unix time ``until``."""

    until: float
    spans: list[Began] = field(default_factory=list)


class Timeline:
    """Takes events in order, and says which spans began and ended with each, and which jobs lost their names."""

    def __init__(self) -> None:
        self._state = state_to_fold_into()
        self._jobs: dict[JobId, _Open] = {}
        self._gpus: dict[NodeId, dict[GpuId, Began]] = {}
        self._booked: dict[str, _Booked] = {}
        self._keys = _Keys()
        self._last = 0.0

    def take(self, line: int, event: Event, now: float) -> list[Change]:
        """Take the next ``event``, of ``line`` of the journal and Unix time ``now``; a time never goes back."""
        now = self._last = max(self._last, now)
        self._state.forget_due(now)
        self._keys = _Keys(line)
        if isinstance(event, e.JobRemoved | e.JobRetired):  # the job is over, and was dropped when it ended
            return [Unnamed(event.job)] if isinstance(event, e.JobRemoved) else []
        apply(self._state, _without_program(event), now)
        found = list[Change]()
        if (job := getattr(event, "job", None)) is not None:
            found += self._look_at_job(job, event, now)
            if isinstance(event, e.StrayFound | e.StrayGone):  # other GPUs are set aside now, or dirty
                found += self._look_at_node(event.node, now)
        elif (node := getattr(event, "node", None)) is not None:
            found += self._look_at_node(node, now)
        elif (booking := getattr(event, "booking", None)) is not None:
            found += self._look_at_booking(booking, event, now)
        return found

    # --- jobs ---

    def _look_at_job(self, id: JobId, event: Event, now: float) -> Iterator[Began | Ended]:
        entry = self._jobs.get(id)
        if entry is None:
            job = self._state.jobs.get(id)
            if job is None:
                return
            entry = self._jobs[id] = _Open(job)
        job = entry.job
        yield from self._follow_life(entry, now)
        yield from self._follow_attempt(entry, now)
        if isinstance(event, e.AttemptFreed) and event.dirty_gpus:
            for piece in job.attempts[event.attempt - 1].allocation:
                yield from self._look_at_node(piece.node, now)
        if job.end is not None and (job.attempt is None or job.attempt.freed is not None):
            del self._jobs[id]  # so that memory does not grow with the length of the journal
            self._state.forget_job(id)
            if job.lineage.task is not None:
                self._state.gates.forget_array(job.lineage.task.array)

    def _follow_life(self, entry: _Open, now: float) -> Iterator[Began | Ended]:
        life = life_of(entry.job)
        wanted = None if life is None or life is Life.PLACED else _span(entry.job, life, None)
        if entry.life is not None and (wanted is None or entry.life.what != wanted):
            yield Ended(entry.life.key, now, entry.life.what, "" if entry.job.end is None else entry.job.state.value)
            entry.life = None
        if wanted is not None and entry.life is None:
            entry.life = Began(self._keys.next(), now, wanted)
            yield entry.life

    def _follow_attempt(self, entry: _Open, now: float) -> Iterator[Began | Ended]:
        holding = entry.job.holding
        wanted = None if holding is None else _span(entry.job, stage_of(holding), holding.allocation)
        if entry.stage is not None and (wanted is None or entry.stage.what != wanted):
            yield Ended(entry.stage.key, now, entry.stage.what, _why(entry.job, entry.job.attempts[-1]))
            entry.stage = None
        if wanted is not None and entry.stage is None:
            entry.stage = Began(self._keys.next(), now, wanted)
            yield entry.stage

    # --- GPUs ---

    def _look_at_node(self, id: NodeId, now: float) -> Iterator[Began | Ended]:
        node, known = self._state.nodes.get(id), self._gpus.setdefault(id, {})
        for gpu in sorted({*known, *(() if node is None else node.gpus)}):
            rest = None if node is None else rest_of(node, gpu)
            wanted = None
            if node is not None and rest is not None:
                wanted = RestSpan(id, gpu, node.gpus[gpu].index, node.facts.pool, rest)
            before = known.get(gpu)
            if before is not None and before.what != wanted:
                del known[gpu]
                yield Ended(before.key, now, before.what)
            if wanted is not None and gpu not in known:
                known[gpu] = began = Began(self._keys.next(), now, wanted)
                yield began

    # --- bookings ---

    def _look_at_booking(self, id: str, event: Event, now: float) -> Iterator[Began | Ended]:
        for over in [other for other, booked in self._booked.items() if booked.until <= now]:
            del self._booked[over]  # its spans have ended by themselves
        if (before := self._booked.pop(id, None)) is not None:
            why = "moved" if isinstance(event, e.BookingMoved) else "cancelled"
            yield from (Ended(span.key, now, span.what, why) for span in before.spans)
        booking = self._state.bookings.by_id.get(id)
        if booking is None or booking.until <= now:
            return
        self._booked[id] = booked = _Booked(booking.until)
        for gpu in booking.gpus:
            what = BookedSpan(id, booking.user, gpu.node, gpu.gpu)
            booked.spans.append(Began(self._keys.next(), max(now, booking.since), what, booking.until))
        yield from booked.spans


def _span(job: Job, doing: Life | Stage, allocation: Allocation | None) -> JobSpan:
    return JobSpan(job.id, job.user, job.spec.name, job.pool, len(job.attempts), doing, allocation)


def _why(job: Job, attempt: Attempt) -> str:
    """Return why what ``attempt`` did has ended: how it ended, or why it was asked to; empty while it goes on."""
    order = attempt.stop
    if attempt.end is not None and attempt.end.exit is not None:
        return read_exit(attempt.end.exit, job.spec, None if order is None else order.cause).ending.name.lower()
    if attempt.end is not None:
        return "did not start"
    if order is None:
        return ""
    return f"{order.cause.value} for job {order.for_job}" if order.for_job is not None else order.cause.value


def _without_program(event: Event) -> Event:
    """Return ``event`` without what a job runs, which takes most of a job's memory and changes no span."""
    if not isinstance(event, e.JobSubmitted):
        return event
    spec = replace(event.spec, command=_NO_COMMAND, env={}, script="", scripts={}, resume_args=(), snapshot=None)
    return replace(event, spec=spec, operation_id="", request="")
