"""Follows the connections of nodes and the health of their GPUs."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.job.facets import CONSTRAINED
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobState, RefusalCause
from ebbtide_core.nodes import foreign_use, launch_backoff, silence
from ebbtide_core.resources.books import Node
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState


def registered(state: ClusterState, event: e.NodeRegistered, now: float) -> None:
    if (known := state.nodes.get(event.node)) is not None:
        foreign_use.count(state, known, now, goes_on=True)
        if known.facts.pool != event.pool:
            _unregister(state, known)
    pool = state.pool(event.pool)
    node = pool.books.register(event, now)
    state.refresh_node(node)
    state.unreachable.discard(node.id)
    state.awaited.discard(node.id)
    state.unheard.discard(node.id)
    state.leasing.discard(node.id)
    pool.freed_nodes.add(node.id)
    state.note_departures(node)
    for job in state.jobs_on(node):
        if job.state is JobState.UNREACHABLE:
            job.reason = f"node {node.id} is back"
        if (live := job.live) is not None and live.idle is not None and live.idle.suspend_at is not None:
            state.set_deadline(job, live.idle.suspend_at)  # it may have passed while the node was away
        state.refresh(job, now)
    if state.left_out:
        launch_backoff.registered(state, node.id, now)


def _unregister(state: ClusterState, node: Node) -> None:
    """Take the node, which registers in another pool, out of its old pool."""
    if node.attempts or node.planned:
        jobs = ", ".join(sorted(node.attempts | node.planned))
        state.problems.append(f"node {node.id} leaves pool {node.facts.pool} while job {jobs} is there")
    pool = state.pool_of(node)
    pool.books.unregister(node)
    pool.changed = True


def _disconnected(state: ClusterState, event: e.NodeDisconnected, now: float) -> None:
    if (node := state.nodes.get(event.node)) is not None:
        node.connected = False
        node.last_seen = now
        state.refresh_node(node)


def _lost(state: ClusterState, event: e.NodeLost, now: float) -> None:
    node = state.nodes[event.node]
    foreign_use.count(state, node, now, goes_on=False)
    node.connected, node.lost, node.lost_since = False, True, now
    state.refresh_node(node)
    state.unreachable.add(node.id)
    state.awaited.discard(node.id)
    for job in state.jobs_on(node):
        if job.live is not None:
            job.reason = f"node {node.id} has been silent for {event.silent_s:.0f} s"
        state.refresh(job, now)
    silence.note_leases(state, node, event, now)


def _excluded(state: ClusterState, job: Job, event: e.NodeExcluded, now: float) -> None:
    state.leave_queue(job)
    job.eligibility = job.eligibility.without(event.node, event.reason)
    launch_backoff.left_out(state, job, event.node, now)


def readmit(state: ClusterState, job: Job) -> None:
    """Let ``job`` use the nodes and GPUs again from which it was excluded."""
    state.leave_queue(job)
    job.eligibility = CONSTRAINED
    job.retries = replace(job.retries, vain_in_row=0, launches_in_vain={})
    state.left_out.discard(job.id)


def exclude_refusing(state: ClusterState, event: e.AttemptRefused) -> Iterator[e.Event]:
    """Exclude a node from the job that it refused, if it lacks something that the job needs."""
    if event.cause in (RefusalCause.NO_PATH, RefusalCause.NO_ACCOUNT, RefusalCause.NO_STDIN):
        attempt = state.jobs[event.job].attempts[event.attempt - 1]
        yield e.NodeExcluded(event.job, event.node or attempt.allocation.node_ids[0], event.reason)
    yield from launch_backoff.leave_out(state.jobs[event.job], event)


def gpu_health_changed(state: ClusterState, event: e.GpuHealthChanged, now: float) -> None:
    node = state.nodes[event.node]
    if event.healthy:
        node.quarantine.pop(event.gpu, None)
    if event.gpu in node.gpus:
        facts = node.gpus[event.gpu]
        node.gpus[event.gpu] = replace(facts, healthy=event.healthy, unhealthy_reason=event.reason)
        state.refresh_node(node)
        state.pool_of(node).freed_nodes.add(node.id)


def is_known(state: ClusterState, event: e.NodeLost | e.GpuHealthChanged | e.NodeDrained) -> bool:
    """Return whether the node exists."""
    return event.node in state.nodes


def _may_be_excluded(state: ClusterState, event: e.NodeExcluded) -> bool:
    job = state.jobs.get(event.job)
    return job is not None and job.end is None and event.node not in job.eligibility.excluded


RULES: Final = (
    Rule(
        e.NodeDisconnected,
        apply=_disconnected,
        say=lambda event: "its connection broke; it may be back in a moment",
    ),
    Rule(
        e.NodeLost,
        news=is_known,
        apply=_lost,
        decide=silence.doubt,
        say=lambda event: f"has been silent for {event.silent_s:.0f} s; what runs there is not started elsewhere",
    ),
    Rule(
        e.NodeExcluded,
        news=_may_be_excluded,
        apply=about_job(_excluded),
        say=lambda event: f"not to run on node {event.node} any more: {event.reason}",
    ),
)
