"""Decides what follows when nodes are silent. Silence alone ends nothing: attempts there may still run.

An attempt on a silent node is over, and its job may start elsewhere, only once that is proven: by the node itself, by a
user or a fence hook that confirms that the node is dead, or, for jobs that asked for it, by a lease. An attempt with a
lease ends itself when it has not heard the master for the lease's term; the master waits longer than that. The master
counts from when it last told the node that it hears it, and the node counts from when it sent the message which that
answered. So the node's time ends first, however long messages were on their way.

When more than half of the nodes fall silent together, the master assumes that it is the one that is cut off. Until half
of them are heard again, or a user says otherwise, no lease counts as over, and no node is fenced.
"""

from collections.abc import Iterator
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.events.words import by
from ebbtide_core.job import gang
from ebbtide_core.job.job import Job
from ebbtide_core.model import limits
from ebbtide_core.model.refusals import Refusal, RefusalKind
from ebbtide_core.model.types import ExitFacts, NodeId
from ebbtide_core.nodes import foreign_use
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.silent_nodes import NOBODY
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState

# --- what is confirmed to be dead ---


def _refuse_dead(state: ClusterState, event: e.NodeConfirmedDead) -> Refusal | None:
    """Return why the node cannot be confirmed dead; None if it can."""
    node = state.nodes.get(event.node)
    if node is None:
        return Refusal(RefusalKind.UNKNOWN, f"node {event.node} does not exist")
    if node.connected:
        return Refusal(RefusalKind.CONFLICT, f"node {node.id} is connected: it is not dead")
    return None


def _is_news(state: ClusterState, event: e.NodeConfirmedDead) -> bool:
    """Return whether the node was not known to be dead, or an attempt still waits for its part there."""
    node = state.nodes.get(event.node)
    return node is not None and not node.connected and (not node.dead or bool(node.attempts))


def _confirmed_dead(state: ClusterState, event: e.NodeConfirmedDead, now: float) -> None:
    node = state.nodes[event.node]
    if not node.lost:
        foreign_use.count(state, node, now, goes_on=False)
        node.lost_since = now
    node.connected, node.lost = False, True
    node.dead = event.user or ("the fence hook" if event.by_hook else "somebody")
    node.strays.clear()
    state.refresh_node(node)
    state.unreachable.discard(node.id)
    state.awaited.discard(node.id)
    state.unheard.discard(node.id)
    state.leasing.discard(node.id)
    for job in state.jobs_on(node):
        state.refresh(job, now)


def _end_there(state: ClusterState, event: e.NodeConfirmedDead) -> Iterator[Event]:
    """End all attempts on the node, and free what they have."""
    node = state.nodes[event.node]
    for job in state.jobs_on(node):
        yield from _over(job, node, f"node {node.id} was confirmed dead by {node.dead}")
    yield from believe_if_heard(state)


def _over(job: Job, node: Node, why: str) -> Iterator[Event]:
    """Yield the end of the part of the job's attempt on ``node``, which is proven to be over."""
    attempt = job.attempts[-1]
    part = node.id if attempt.gang is not None else e.EVERY_NODE
    if not gang.has_ended(attempt, node.id) or gang.is_to_follow(attempt, node.id):
        exit = ExitFacts(lost=True, lost_because=why)
        yield e.AttemptExited(job.id, attempt.number, exit, freed=True, node=part)
    elif not gang.has_freed(attempt, node.id):
        yield e.AttemptFreed(job.id, attempt.number, node=part)


# --- leases ---


def note_leases(state: ClusterState, node: Node, event: e.NodeLost, now: float) -> None:
    """Fold: note from when on the leases on a lost node count, and when to look at them."""
    node.acknowledged = event.acknowledged or now
    for job in state.jobs_on(node):
        if (ends := _lease_ends(job, node)) is not None:
            state.leasing.add(node.id)
            state.look_at(job, ends)


def over_leases(state: ClusterState, now: float) -> Iterator[Event]:
    """End the attempts whose lease is over on every clock."""
    if state.silent.doubted:
        return
    for id in sorted(state.leasing):
        node = state.nodes[id]
        for job in state.jobs_on(node):
            ends = _lease_ends(job, node)
            if ends is not None and ends <= now:
                silent_s = now - node.acknowledged
                yield from _over(job, node, f"its lease ended: node {id} was silent for {silent_s:.0f} s")


def _lease_ends(job: Job, node: Node) -> float | None:
    """Return the Unix time by which the job's attempt on a lost node has surely ended itself; None if it never does."""
    live, term_s = job.live, job.spec.failover_after_s
    if live is None or term_s is None or node.id not in live.leased or gang.has_ended(live, node.id):
        return None
    return node.acknowledged + term_s * (1.0 + limits.LEASE_DRIFT) + limits.LEASE_MARGIN_S


# --- whose fault it is ---


def doubt(state: ClusterState, event: e.NodeLost) -> Iterator[Event]:
    """Yield the doubt that the master itself is cut off, if most nodes fell silent together with this one."""
    if (found := state.silent.to_doubt(state.nodes[event.node].lost_since)) is not None:
        silent, known = found
        yield e.SilenceDoubted(tuple(sorted(silent)), known)


def _doubted(state: ClusterState, event: e.SilenceDoubted, now: float) -> None:
    state.silent.doubt(frozenset(event.nodes))
    state.look_again()


def _believed(state: ClusterState, event: e.SilenceBelieved, now: float) -> None:
    state.silent.doubt(NOBODY)
    state.look_again()


def believe_if_heard(state: ClusterState) -> Iterator[Event]:
    """End the doubt about the silent nodes once at least half of them were heard or are known to be dead."""
    if state.silent.doubted and state.silent.is_settled():
        yield e.SilenceBelieved()


def _refuse_belief(state: ClusterState, event: e.SilenceBelieved) -> Refusal | None:
    return None if state.silent.doubted else Refusal(RefusalKind.CONFLICT, "no silence is doubted: see 'ebb nodes'")


# --- a journal from before ---


def to_await(state: ClusterState) -> list[NodeId]:
    """Return the nodes that count as lost unless they come back after the start of a master.

    Idle ones are among them, although nothing that is placed waits for those (see `ClusterState.awaited`).
    """
    return sorted(id for id, node in state.nodes.items() if id in state.awaited or not node.lost)


def await_all(state: ClusterState) -> None:
    """Let nothing start before every known node has reported: it may have attempts that the journal does not know."""
    state.unheard = {node.id for node in state.nodes.values() if not node.dead}


# --- in words ---


def _say_dead(event: e.NodeConfirmedDead) -> str:
    whose = " by the fence hook" if event.by_hook else by(event.user)
    return f"confirmed dead{whose}: none of its attempts runs any more"


def _say_doubted(event: e.SilenceDoubted) -> str:
    silent = f"{len(event.nodes)} of {event.of} nodes"
    return f"{silent} fell silent together: the master may be cut off itself, and declares none of them lost"


RULES: Final = (
    Rule(
        e.NodeConfirmedDead,
        refuse=_refuse_dead,
        news=_is_news,
        apply=_confirmed_dead,
        decide=_end_there,
        say=_say_dead,
    ),
    Rule(
        e.FenceFailed,
        say=lambda event: f"fence hook: {event.reason}; tried again in {event.again_s:.0f} s",
    ),
    Rule(e.SilenceDoubted, apply=_doubted, say=_say_doubted),
    Rule(
        e.SilenceBelieved,
        refuse=_refuse_belief,
        apply=_believed,
        say=lambda event: f"nodes that are silent count as silent by themselves again{by(event.user)}",
    ),
)
