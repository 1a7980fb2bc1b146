"""Sets right what began while the master's clock was ahead, once the clock was set back.

Such a time is one to come by then: an attempt would not have run, and a pause would not be over, before the clock is
there again. Each is set back by as much as the clock was, so that what lies between two of them stays the same. Times
that users named, such as those of ``--begin`` and of reservations, stay as they are. So do leases, which must not end
too early, and the sums of the ledger, whose time does not go back.
"""

from dataclasses import dataclass, replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events.words import duration
from ebbtide_core.job.facets import IdleTime
from ebbtide_core.job.job import Attempt, Job, Suspension
from ebbtide_core.lifecycle.attempts import look_at_limits
from ebbtide_core.model import limits
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState

LEAST_S: Final = 60.0
"""Seconds. The master's clock goes back by more than this, or not at all."""


@dataclass(frozen=True, slots=True)
class _Correction:
    """Sets back times by ``by_s`` seconds that are later than ``now``, a Unix time."""

    by_s: float
    now: float

    def of(self, time: float) -> float:
        return time - self.by_s if time > self.now else time

    def of_any(self, time: float | None) -> float | None:
        return None if time is None else self.of(time)


def _set_back(state: ClusterState, event: e.ClockSetBack, now: float) -> None:
    right = _Correction(event.by_s, now)
    state.recovery_ends, state.silent.started = right.of(state.recovery_ends), right.of(state.silent.started)
    for node in state.nodes.values():
        node.last_seen, node.lost_since = right.of(node.last_seen), right.of(node.lost_since)
        state.silent.note(node)
        for use in node.foreign.values():
            use.since = right.of_any(use.since)
    for job in [job for job in state.unfinished.values() if job.attempts or job.held_by is not None]:
        state.leave_queue(job)
        _correct_waiting(state, job, right)
        if job.attempts:
            _correct_attempt(job.attempts[-1], right)
        if job.suspensions:
            _correct_suspension(job.suspensions[-1], right)
        if job.running:
            look_at_limits(state, job, now)
            _look_at_waits(state, job)
        state.refresh(job, now)


def _correct_waiting(state: ClusterState, job: Job, right: _Correction) -> None:
    job.next = replace(job.next, not_before=right.of(job.next.not_before))
    job.times = replace(job.times, held_since=right.of_any(job.times.held_since))
    job.measured = replace(job.measured, progress_at=right.of(job.measured.progress_at))
    if job.eligibility.left_out_until:
        until = {node: right.of(time) for node, time in job.eligibility.left_out_until.items()}
        job.eligibility = replace(job.eligibility, left_out_until=until)
        for time in until.values():
            state.look_at(job, time)


def _correct_attempt(attempt: Attempt, right: _Correction) -> None:
    attempt.placed, attempt.started = right.of(attempt.placed), right.of_any(attempt.started)
    attempt.first_started, attempt.unused_since = right.of_any(attempt.first_started), right.of(attempt.unused_since)
    attempt.saved_at = right.of_any(attempt.saved_at)
    if attempt.stop is not None:
        attempt.stop.requested = right.of(attempt.stop.requested)
    if (swap := attempt.swap) is not None:
        swap.out_since, swap.returning_since = right.of_any(swap.out_since), right.of_any(swap.returning_since)
    if (idle := attempt.idle) is not None and idle.noted > right.now:
        attempt.idle = IdleTime(right.of(idle.since), right.of_any(idle.suspend_at), right.of(idle.noted))
    for member in attempt.gang.members.values() if attempt.gang is not None else ():
        member.ended = right.of_any(member.ended)


def _look_at_waits(state: ClusterState, job: Job) -> None:
    """Have passes look at ``job`` when it has been idle, or waited for its other nodes, for too long."""
    attempt = job.attempts[-1]
    if attempt.idle is not None and attempt.idle.suspend_at is not None:
        state.set_deadline(job, attempt.idle.suspend_at)
    for member in attempt.gang.members.values() if attempt.gang is not None else ():
        if member.ended is not None:
            state.set_deadline(job, member.ended + limits.GANG_FOLLOW_S)


def _correct_suspension(suspension: Suspension, right: _Correction) -> None:
    suspension.requested, suspension.exited = right.of(suspension.requested), right.of_any(suspension.exited)
    suspension.gpu_free, suspension.resumed = right.of_any(suspension.gpu_free), right.of_any(suspension.resumed)
    suspension.placed, suspension.working = right.of_any(suspension.placed), right.of_any(suspension.working)


RULES: Final = (
    Rule(
        e.ClockSetBack,
        apply=_set_back,
        say=lambda event: f"the clock had been ahead, and was set back by {duration(event.by_s)}",
    ),
)
