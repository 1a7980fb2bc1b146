"""Removes jobs and nodes when a user asks for it: only finished jobs, and lost nodes that no job needs."""

from collections.abc import Iterator
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events.words import by
from ebbtide_core.lifecycle.forgetting import unknown_job
from ebbtide_core.model.refusals import Refusal, RefusalKind
from ebbtide_core.model.types import JobId
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.checkpoint_location import sees_checkpoint
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState

# --- nodes ---


def _refuse_node(state: ClusterState, event: e.NodeRemoved) -> Refusal | None:
    id = event.node
    node = state.nodes.get(id)
    if node is None:
        return Refusal(RefusalKind.UNKNOWN, f"node {id} does not exist")
    if node.connected:
        return _conflict(f"node {id} is connected: stop its agent first")
    if not node.lost:
        return _conflict(f"node {id} may be back in a moment: it is not lost yet")
    if node.attempts or node.planned:
        jobs = ", ".join(sorted(node.attempts | node.planned))
        return _conflict(f"node {id} may still run job {jobs}: 'ebb node confirm-dead {id}' if that is certainly over")
    if node.strays or id in state.unheard or id in state.awaited:
        return _conflict(f"it is not known what runs on node {id}: 'ebb node confirm-dead {id}' if nothing does")
    if id in state.silent.doubted:
        return _conflict(f"node {id} fell silent together with others: 'ebb node believe-silence' if it did by itself")
    if waiting := next(saved_there_alone(state, node), None):
        return _conflict(f"job {waiting} has its checkpoints on node {id}, and nowhere else: cancel it first")
    return None


def _may_be_removed(state: ClusterState, event: e.NodeRemoved) -> bool:
    return _refuse_node(state, event) is None


def _node_removed(state: ClusterState, event: e.NodeRemoved, now: float) -> None:
    node = state.nodes[event.node]
    pool = state.pool_of(node)
    pool.books.unregister(node)
    del state.nodes[node.id]
    state.silent.forget(node.id)
    pool.freed_nodes.discard(node.id)
    state.failing.pop(node.id, None)
    for index in (state.unreachable, state.draining, state.leasing):
        index.discard(node.id)
    state.look_again()


def saved_there_alone(state: ClusterState, node: Node) -> Iterator[JobId]:
    """Yield the unfinished jobs whose checkpoints are on ``node`` and on no other."""
    root = node.facts.checkpoint_root_id
    if not root or any(other is not node and other.facts.checkpoint_root_id == root for other in state.nodes.values()):
        return
    yield from (job.id for job in state.unfinished.values() if job.saved.root_id and sees_checkpoint(job, node))


# --- jobs ---


def _refuse_job(state: ClusterState, event: e.JobRemoved) -> Refusal | None:
    job = state.jobs.get(event.job)
    if job is None:
        return Refusal(RefusalKind.UNKNOWN, unknown_job(state, event.job))
    if not job.state.finished:
        return _conflict(f"job {job.id} is {job.state.value}: only a finished one can be removed")
    if any(attempt.freed is None for attempt in job.attempts):
        return _conflict(f"job {job.id} has ended, and it is not proven that its GPUs are free: try again later")
    if job.id in state.unreadable:
        return _conflict(f"job {job.id} is set aside, because its part of the journal is damaged")
    if job.lineage.again_as is not None and job.lineage.again_as in state.jobs:
        return _conflict(f"job {job.id} was submitted again as job {job.lineage.again_as}: remove that one first")
    return None


def _is_over(state: ClusterState, event: e.JobRetired | e.JobRemoved) -> bool:
    job = state.jobs.get(event.job)
    return job is not None and job.end is not None and job.holding is None


def _retired(state: ClusterState, event: e.JobRetired, now: float) -> None:
    state.forget_job(event.job)


def _removed(state: ClusterState, event: e.JobRemoved, now: float) -> None:
    task = state.jobs[event.job].lineage.task
    state.forget_job(event.job)
    state.removed.add(event.job)
    if task is not None and not state.gates.arrays[task.array].tasks:
        state.removed.add(task.array)


def _conflict(message: str) -> Refusal:
    return Refusal(RefusalKind.CONFLICT, message)


RULES: Final = (
    Rule(
        e.JobRemoved,
        refuse=_refuse_job,
        news=_is_over,
        apply=_removed,
        say=lambda event: f"removed{by(event.user)}, with its logs and checkpoints",
    ),
    Rule(e.JobRetired, news=_is_over, apply=_retired, say=lambda event: "forgotten: it ended long ago"),
    Rule(
        e.NodeRemoved,
        refuse=_refuse_node,
        news=_may_be_removed,
        apply=_node_removed,
        say=lambda event: f"removed{by(event.user)}",
    ),
)
