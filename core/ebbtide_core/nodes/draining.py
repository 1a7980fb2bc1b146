"""Takes nodes out of service: nothing new starts there, and the jobs there leave by the deadline, if there is one.

A job that can go on elsewhere is suspended one grace period before the deadline. All others run to their end: jobs that
are never suspended, and jobs that stay in their node's memory when they are suspended. With ``force``, these are ended
instead, one grace period before the deadline. A deadline that has passed means now.
"""

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.events.words import by
from ebbtide_core.job.job import Job
from ebbtide_core.model.refusals import Refusal, RefusalKind
from ebbtide_core.model.types import Drain, Loan, NodeId, StopCause
from ebbtide_core.nodes.node_health import is_known
from ebbtide_core.reconcile import stop
from ebbtide_core.resources.bookings import lead_s
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.eligibility import could_run
from ebbtide_core.resources.loans import can_leave
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState

LEAVE_AT_ONCE: Final = 100
"""Jobs that are asked to leave in one batch; other work has its turn before the next batch."""


class DrainOutcome(Enum):
    """What becomes of a job on a node that is drained or ends, or on one that is not and does not."""

    LEAVING = "is leaving already"
    RUNS_OUT = "runs to its end"
    GOES_ON = "is suspended and resumes elsewhere"
    WAITS = "is suspended and waits: no other node can take it now"
    STARTS_OVER = "is ended and starts again from what it saved: it cannot be suspended"
    ENDS = "is ended"
    STAYS = "stays: it cannot go on elsewhere"


@dataclass(frozen=True, slots=True)
class DrainForecast:
    """The ``outcome`` of a job, and from which Unix time on; None if the job is not asked to do anything."""

    job: Job
    outcome: DrainOutcome
    at: float | None


def drain_forecasts(state: ClusterState, node: Node, now: float) -> Iterator[DrainForecast]:
    """Yield what becomes of each job on ``node`` if it is drained."""
    return (_forecast(state, job, node, now) for job in state.jobs_on(node))


def forecast_drain(state: ClusterState, event: e.NodeDrained, now: float) -> list[DrainForecast]:
    """Return what would become of each job if the node were drained so. This changes ``state``, which is a copy."""
    _drained(state, event, now)
    return list(drain_forecasts(state, state.nodes[event.node], now))


def _forecast(state: ClusterState, job: Job, node: Node, now: float) -> DrainForecast:
    """Return what becomes of ``job``: what the drain, or the end of the node, brings about first."""
    drain, loan, found = node.drain, node.loan, list[DrainForecast]()
    if job.live is None or (not job.running and not job.off_gpu):
        return DrainForecast(job, DrainOutcome.LEAVING, None)
    if drain is not None and drain.deadline is not None:
        found.append(_leaves(state, job, drain, now))
    if loan is not None:
        found.append(_departs(state, job, node.id, loan, now))
    return min(found, key=_soonest, default=DrainForecast(job, DrainOutcome.RUNS_OUT, None))


def _soonest(forecast: DrainForecast) -> float:
    return math.inf if forecast.at is None else forecast.at


def _leaves(state: ClusterState, job: Job, drain: Drain, now: float) -> DrainForecast:
    """Return what becomes of ``job`` on a node that is drained with a deadline."""
    at = max(now, _leaves_at(job, drain))
    if can_leave(job):
        outcome = DrainOutcome.GOES_ON if could_run(job, state.pools[job.pool].books) else DrainOutcome.WAITS
        return DrainForecast(job, outcome, at)
    return DrainForecast(job, DrainOutcome.ENDS, at) if drain.force else DrainForecast(job, DrainOutcome.STAYS, None)


def _departs(state: ClusterState, job: Job, node: NodeId, loan: Loan, now: float) -> DrainForecast:
    """Return what becomes of ``job`` on a node that ends (see `nodes.loan_ends`)."""
    outcome = DrainOutcome.STARTS_OVER
    if can_leave(job):
        elsewhere = copy(job)
        elsewhere.eligibility = job.eligibility.without(node, "it ends")
        outcome = DrainOutcome.GOES_ON if could_run(elsewhere, state.pools[job.pool].books) else DrainOutcome.WAITS
    return DrainForecast(job, outcome, max(now, loan.until - lead_s(job)))


def _leaves_at(job: Job, drain: Drain) -> float:
    assert drain.deadline is not None
    return drain.deadline - job.spec.grace_s


# --- the drain ---


def refuse_unknown(state: ClusterState, event: e.NodeDrained | e.NodeResumed | e.LoanChanged) -> Refusal | None:
    """Return that the node does not exist; None if it does."""
    if event.node in state.nodes:
        return None
    return Refusal(RefusalKind.UNKNOWN, f"node {event.node} does not exist")


def _drained(state: ClusterState, event: e.NodeDrained, now: float) -> None:
    node = state.nodes[event.node]
    since = now if node.drain is None else node.drain.since
    drain = node.drain = Drain(since, event.user, event.reason, event.deadline, event.force)
    state.refresh_node(node)
    state.draining.discard(node.id)
    if event.deadline is not None:
        state.draining.add(node.id)
        for job in state.jobs_on(node):
            state.look_at(job, _leaves_at(job, drain))


def _is_drained(state: ClusterState, event: e.NodeResumed) -> bool:
    node = state.nodes.get(event.node)
    return node is not None and node.drain is not None


def _resumed(state: ClusterState, event: e.NodeResumed, now: float) -> None:
    node = state.nodes[event.node]
    node.drain = None
    state.failing.pop(node.id, None)
    state.draining.discard(node.id)
    state.refresh_node(node)
    state.pool_of(node).freed_nodes.add(node.id)


def leave(state: ClusterState, now: float, until: float) -> Iterator[Event]:
    """Stop jobs on drained nodes whose time is up before ``until``: `LEAVE_AT_ONCE` now, the others right
    afterwards."""
    room = LEAVE_AT_ONCE
    for id in sorted(state.draining):
        node = state.nodes[id]
        drain = node.drain
        for job in state.jobs_on(node) if drain is not None else ():
            assert drain is not None
            if _leaves_at(job, drain) > until or job.live is None:
                continue
            order = _order(job, id, drain)
            if order is None:
                continue
            if not room:
                state.look_at(job, now)
                return
            room -= 1
            yield order


def _order(job: Job, node: NodeId, drain: Drain) -> Event | None:
    """Return the stop order for ``job``, whose time is up; None if it stays, or was ordered to stop before."""
    if can_leave(job) and job.running:
        return stop(job, StopCause.DRAINED, f"node {node} is drained{_why(drain)}")
    if drain.force and not can_leave(job) and not _is_ending(job):
        return stop(job, StopCause.EXPELLED, f"node {node} is drained{_why(drain)}, and it cannot go on elsewhere")
    return None


def _is_ending(job: Job) -> bool:
    order = job.attempts[-1].stop
    return order is not None and order.cause.final


def _why(drain: Drain) -> str:
    return f": {drain.reason}" if drain.reason else ""


RULES: Final = (
    Rule(
        e.NodeDrained,
        refuse=refuse_unknown,
        news=is_known,
        apply=_drained,
        say=lambda event: f"taken out of service{by(event.user)}{f': {event.reason}' if event.reason else ''}",
    ),
    Rule(
        e.NodeResumed,
        refuse=refuse_unknown,
        news=_is_drained,
        apply=_resumed,
        say=lambda event: f"put into service again{by(event.user)}",
    ),
)
