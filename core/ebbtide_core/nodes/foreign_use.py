"""Tracks processes that belong to no job (see `resources.foreign_processes`): their GPUs, and their time by user.

Each GPU-second is divided equally among the users on the GPU.
"""

from typing import Final

from ebbtide_core.events import ForeignUseChanged
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.foreign_processes import is_change, on_gpu, users_text
from ebbtide_core.resources.node_usage import ForeignUse
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState


def _is_news(state: ClusterState, event: ForeignUseChanged) -> bool:
    """Return whether the node has that GPU, and anything on it has changed."""
    node = state.nodes.get(event.node)
    return node is not None and event.gpu in node.gpus and is_change(on_gpu(node, event.gpu), event.processes)


def _changed(state: ClusterState, event: ForeignUseChanged, now: float) -> None:
    node = state.nodes[event.node]
    before = node.foreign.pop(event.gpu, None)
    if before is not None:
        _add(state.foreign_gpu_s, before, now)
    if event.processes:
        node.foreign[event.gpu] = ForeignUse(event.processes, now)
    state.refresh_node(node)
    state.pool_of(node).freed_nodes.add(node.id)


def count(state: ClusterState, node: Node, now: float, *, goes_on: bool) -> None:
    """Add up the time of all foreign processes on ``node``; from ``now`` on, count it only if ``goes_on``."""
    for use in node.foreign.values():
        _add(state.foreign_gpu_s, use, now)
        use.since = now if goes_on else None


def gpu_seconds(state: ClusterState, now: float) -> dict[str, float]:
    """Return the GPU-seconds until ``now`` that each user has had outside the cluster."""
    total = dict(state.foreign_gpu_s)
    for node in state.nodes.values():
        for use in node.foreign.values():
            _add(total, use, now)
    return total


def _add(total: dict[str, float], use: ForeignUse, now: float) -> None:
    if use.since is None:
        return
    users = {process.user for process in use.processes}
    for user in users:
        total[user] = total.get(user, 0.0) + max(0.0, now - use.since) / len(users)


def _say(event: ForeignUseChanged) -> str:
    if not event.processes:
        return f"GPU {event.gpu} is used by no process but jobs' any more"
    return f"GPU {event.gpu} is used by {users_text(event.processes)}, which belongs to no job"


RULES: Final = (Rule(ForeignUseChanged, news=_is_news, apply=_changed, say=_say),)
