"""Takes in when nodes on loan end, and makes all jobs leave them in time.

Each job is asked to leave one grace period, and the time to free its GPUs, before its node is gone. If less time is
left than that, because the end was announced late, its grace period is cut to what is left, and the jobs that need the
longest are asked first. A node does not wait for jobs that are never suspended, or that would lie in its memory: they
are asked as well, and start again elsewhere from what they saved.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.commands import AnnounceEnd, Command
from ebbtide_core.events import Event
from ebbtide_core.events.words import by, duration
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.job.swap_causes import is_swapped_for
from ebbtide_core.model.types import Loan, NodeId, StopCause
from ebbtide_core.nodes.draining import LEAVE_AT_ONCE, refuse_unknown
from ebbtide_core.reconcile import stop
from ebbtide_core.resources.bookings import FREEING_S, lead_s
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.loans import ROUNDING_S
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState


def leave(state: ClusterState, now: float) -> Iterator[Event]:
    """Ask some of the jobs to leave whose time has come; those that need the longest come first."""
    for _ in range(LEAVE_AT_ONCE):
        if (job := state.next_to_leave(now + ROUNDING_S)) is None:
            return
        if (order := _order(state, job, now)) is not None:
            yield order


def _order(state: ClusterState, job: Job, now: float) -> Event | None:
    """Return the stop order for ``job``; None if it need not leave yet, or its attempt ends in time already."""
    live = job.live
    ending = None if live is None else _first_to_end(state, live)
    if live is None or ending is None:
        return None
    node, loan = ending
    if loan.until - lead_s(job) > now + ROUNDING_S:
        return None  # what was announced of its end has changed
    grace_s, before = grace_left_s(job, loan, now), live.stop
    if before is None or is_swapped_for(job, before.cause):
        return stop(job, StopCause.DRAINED, f"node {node} ends", grace_s=grace_s)
    if before.requested + before.grace_s > now + grace_s + ROUNDING_S:
        return stop(job, before.cause, before.reason, before.for_job, grace_s)
    return None


def grace_left_s(job: Job, loan: Loan, now: float) -> float:
    """Return the grace period in seconds that ``job`` can have before ``loan`` ends; of little time it gets half."""
    left_s = max(0.0, loan.until - now)
    whole_s = float(
        math.ceil(max(left_s - FREEING_S, left_s / 2) - ROUNDING_S)
    )  # a pass may be late by a part of a second
    return min(job.spec.grace_s, whole_s, left_s)


def _first_to_end(state: ClusterState, attempt: Attempt) -> tuple[NodeId, Loan] | None:
    """Return the node of ``attempt`` that ends first, with its loan; None if all of them stay.

    A node where its part is still to be launched counts, and one where its part has ended does not.
    """
    members = {} if attempt.gang is None else attempt.gang.members
    left = {id for id, member in members.items() if member.ended is not None}
    on_loan = ((id, state.nodes[id].loan) for id in attempt.allocation.node_ids if id not in left)
    loans = [(id, loan) for id, loan in on_loan if loan is not None]
    return min(loans, key=lambda found: found[1].until, default=None)


# --- when a node ends ---


def _is_known(state: ClusterState, event: e.LoanChanged) -> bool:
    return event.node in state.nodes


def _changed(state: ClusterState, event: e.LoanChanged, now: float) -> None:
    node = state.nodes[event.node]
    if event.ends_in_s is None:
        node.loan = node.facts.loan
    else:
        node.loan = Loan(now + event.ends_in_s, "" if node.loan is None else node.loan.owner)
    _note(state, node)


def _says_another(state: ClusterState, event: e.LoanAnnounced) -> bool:
    node = state.nodes.get(event.node)
    return node is not None and node.facts.loan != event.loan


def _announced(state: ClusterState, event: e.LoanAnnounced, now: float) -> None:
    node = state.nodes[event.node]
    node.facts = replace(node.facts, loan=event.loan)
    node.loan = event.loan
    _note(state, node)


def _note(state: ClusterState, node: Node) -> None:
    state.refresh_node(node)
    state.pool_of(node).freed_nodes.add(node.id)
    state.note_departures(node)


def _announce(state: ClusterState, event: e.LoanChanged) -> tuple[Command]:
    return (announce_end(state.nodes[event.node]),)


def announce_end(node: Node) -> AnnounceEnd:
    """Return the command that announces to ``node`` when it ends, so that it need not hear the master then."""
    return AnnounceEnd((node.id,), None if node.loan is None else node.loan.until)


def _say_changed(event: e.LoanChanged) -> str:
    if event.ends_in_s is None:
        return f"ends as its agent said{by(event.user)}"
    return f"ends in {duration(event.ends_in_s)}{by(event.user)}"


RULES: Final = (
    Rule(e.LoanChanged, refuse=refuse_unknown, news=_is_known, apply=_changed, command=_announce, say=_say_changed),
    Rule(
        e.LoanAnnounced,
        news=_says_another,
        apply=_announced,
        say=lambda event: "does not end after all" if event.loan is None else "says another time at which it ends",
    ),
)
