"""What is heard of nodes, and of their GPUs' health."""

from dataclasses import replace

from ebbtide_core import events as e
from ebbtide_core import foreign
from ebbtide_core.books import Node
from ebbtide_core.model import JobState
from ebbtide_core.state import ClusterState


def registered(state: ClusterState, event: e.NodeRegistered, now: float) -> None:
    if (known := state.nodes.get(event.node)) is not None:
        foreign.count(state, known, now, goes_on=True)
        if known.facts.pool != event.pool:
            _part_with(state, known)
    pool = state.pool(event.pool)
    node = pool.books.register(event, now)
    state.refresh_node(node)
    state.unreachable.discard(node.id)
    state.awaited.discard(node.id)
    pool.roomier.add(node.id)
    for job in state.jobs_on(node):
        if job.state is JobState.UNREACHABLE:
            job.reason = f"node {node.id} is back"
        state.refresh(job, now)


def _part_with(state: ClusterState, node: Node) -> None:
    """It registers in another pool."""
    if node.attempts or node.planned:
        jobs = ", ".join(sorted(node.attempts | node.planned))
        state.problems.append(f"node {node.id} leaves pool {node.facts.pool} while job {jobs} is there")
    pool = state.pool_of(node)
    pool.books.part_with(node)
    pool.changed = True


def disconnected(state: ClusterState, event: e.NodeDisconnected, now: float) -> None:
    if (node := state.nodes.get(event.node)) is not None:
        node.connected = False
        node.last_seen = now
        state.refresh_node(node)


def lost(state: ClusterState, event: e.NodeLost, now: float) -> None:
    node = state.nodes[event.node]
    foreign.count(state, node, now, goes_on=False)
    node.connected, node.lost = False, True
    state.refresh_node(node)
    state.unreachable.add(node.id)
    state.awaited.discard(node.id)
    for job in state.jobs_on(node):
        if job.live is not None:
            job.reason = f"node {node.id} has been silent for {event.silent_s:.0f} s"
        state.refresh(job, now)


def gpu_health_changed(state: ClusterState, event: e.GpuHealthChanged, now: float) -> None:
    node = state.nodes[event.node]
    if event.healthy:
        node.quarantine.pop(event.gpu, None)
    if event.gpu in node.gpus:
        facts = node.gpus[event.gpu]
        node.gpus[event.gpu] = replace(facts, healthy=event.healthy, unhealthy_reason=event.reason)
        state.refresh_node(node)
        state.pool_of(node).roomier.add(node.id)
