"""Drains nodes on which every job fails soon after its start, because such a node would go through the whole queue.

If jobs of several users fail there one after the other, and none in between lasts, the node is at fault and not the
jobs. It is drained if its pool has another node in service; an operator puts it back.
"""

from collections.abc import Iterator
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.job.outcome import Ending
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_core.planning.draft import jobs_text
from ebbtide_core.state import ClusterState

SOON_S: Final = 60.0
JOBS: Final = 5
USERS: Final = 2


def note(state: ClusterState, job: Job, attempt: Attempt, ending: Ending, now: float) -> None:
    """Note what the end of an attempt says about its nodes."""
    lasted = attempt.started is not None and now - attempt.started > SOON_S
    exit = attempt.end.exit if attempt.end is not None else None
    own_fault = exit is not None and bool(exit.memory_failure or exit.input_failure)
    for node in attempt.allocation.node_ids:
        if ending is Ending.FAILED and not lasted and not own_fault:
            _remember(state.failing.setdefault(node, {}), job)
        elif lasted or ending is Ending.COMPLETED:
            state.failing.pop(node, None)


def _remember(failed: dict[JobId, str], job: Job) -> None:
    """Add ``job`` to the jobs that ``failed``, unless enough of them are known, or enough of its user."""
    users = set(failed.values())
    if len(failed) < JOBS or (len(users) < USERS and job.user not in users):
        failed[job.id] = job.user


def drained(state: ClusterState, attempt: Attempt) -> Iterator[e.Event]:
    """Drain the nodes of ``attempt`` on which too many jobs have failed."""
    for node in attempt.allocation.node_ids:
        failed = state.failing.get(node, {})
        users = len(set(failed.values()))
        if len(failed) >= JOBS and users >= USERS and _has_another(state, node):
            what = f"at least {len(failed)} jobs of {users} users in a row failed here soon after their start"
            reason = f"{what}: {jobs_text(list(failed))}"
            yield e.NodeDrained(node=node, reason=reason)


def _has_another(state: ClusterState, node: NodeId) -> bool:
    suspect = state.nodes[node]
    others = state.pool_of(suspect).books.nodes.values()
    return suspect.drain is None and any(one.connected and one.drain is None for one in others if one is not suspect)
