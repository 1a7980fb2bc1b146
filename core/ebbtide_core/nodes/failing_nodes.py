"""Nodes on which whatever starts fails at once: they would eat the whole queue.

Jobs of several users that fail there soon after their start, one after the other and none in between that lasts, speak
against the node and not against the jobs. It is drained, if there is another one to go to; an operator puts it back.
"""

from collections.abc import Iterator
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.job.outcome import Ending
from ebbtide_core.model.types import NodeId
from ebbtide_core.state import ClusterState

SOON_S: Final = 60.0
JOBS: Final = 5
USERS: Final = 2


def note(state: ClusterState, job: Job, attempt: Attempt, ending: Ending, now: float) -> None:
    """What the end of an attempt says of its nodes."""
    lasted = attempt.started is not None and now - attempt.started > SOON_S
    own_fault = attempt.exit is not None and bool(attempt.exit.memory_failure or attempt.exit.input_failure)
    for node in attempt.allocation.node_ids:
        if ending is Ending.FAILED and not lasted and not own_fault:
            state.failing.setdefault(node, {})[job.id] = job.user
        elif lasted or ending is Ending.COMPLETED:
            state.failing.pop(node, None)


def drained(state: ClusterState, attempt: Attempt) -> Iterator[e.Event]:
    """That nodes of ``attempt`` are taken out of service, if too much failed there."""
    for node in attempt.allocation.node_ids:
        failed = state.failing.get(node, {})
        users = len(set(failed.values()))
        if len(failed) >= JOBS and users >= USERS and _has_another(state, node):
            jobs = ", ".join(failed)
            reason = f"{len(failed)} jobs of {users} users in a row failed here soon after their start: {jobs}"
            yield e.NodeDrained(node=node, reason=reason)


def _has_another(state: ClusterState, node: NodeId) -> bool:
    suspect = state.nodes[node]
    others = state.pool_of(suspect).books.nodes.values()
    return suspect.drain is None and any(one.connected and one.drain is None for one in others if one is not suspect)
