"""Counts how many more nodes the waiting jobs have a use for, by letting a copy of the cluster have them.

The pool's own policy places the jobs on them. So whatever keeps a job from starting on such a node counts here as it
does live: gates, quotas, constraints, what the node's end leaves time for, and what is idle already. A job counts with
its smallest size, because it would start with that.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ebbtide_core import events as e
from ebbtide_core.commands import Record
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import GpuId, JobId, NodeId

if TYPE_CHECKING:
    from ebbtide_core.cluster import Cluster
    from ebbtide_core.state import ClusterState

MOST_PASSES: Final = 100
"""Passes after which no more jobs are placed."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The new nodes on which ``jobs`` would start, which wait for as long as was asked.

    ``beside`` are the nodes that are there already and that these jobs need together with new ones.
    """

    nodes: tuple[NodeId, ...]
    jobs: tuple[JobId, ...]
    beside: tuple[NodeId, ...] = ()


def copy_of(node: e.NodeRegistered, number: int) -> e.NodeRegistered:
    """Return a node like ``node`` that does not exist yet, with GPUs of its own; ``number`` tells it from others."""
    name = f"~{number}"
    gpus = tuple(replace(gpu, gpu=GpuId(f"{name}/{gpu.index}"), links=()) for gpu in node.gpus)
    return replace(node, node=NodeId(name), gpus=gpus, known=())


def demand(cluster: "Cluster", nodes: Iterable[e.NodeRegistered], now: float, after_s: float = 0.0) -> Demand:
    """Give ``cluster``, a copy that is used up, ``nodes``; return on which of them its waiting jobs start.

    Jobs that have waited for less than ``after_s`` seconds do not count.
    """
    new, found = set[NodeId](), dict[JobId, tuple[NodeId, ...]]()
    waiting = [job for job in cluster.state.unfinished.values() if job.live is None and job.planned is None]
    for job in waiting:
        _fix_at_smallest(cluster.state, job, now)
    for node in nodes:
        new.add(node.node)
        cluster.handle(node, now)
    for _ in range(MOST_PASSES):
        placed = [
            command.event
            for command in cluster.handle(e.SchedulingDue(), now)
            if isinstance(command, Record) and isinstance(command.event, e.AttemptPlaced)
        ]
        if not placed:
            break
        found |= {event.job: event.allocation.node_ids for event in placed}
    jobs = cluster.state.jobs
    wanting = {id: on for id, on in found.items() if new.intersection(on) and jobs[id].waiting_s(now) >= after_s}
    used = set[NodeId]().union(*wanting.values())
    return Demand(tuple(sorted(used & new)), tuple(sorted(wanting)), tuple(sorted(used - new)))


def _fix_at_smallest(state: "ClusterState", job: Job, now: float) -> None:
    """Let an elastic job have no more than its smallest size, because a supply lends no nodes for it to grow into."""
    if job.elastic:
        state.leave_queue(job)
        job.gpus_max = job.gpus_min
        if job.admission is not None:
            job.admission.ask(job.gpus_min)
        state.refresh(job, now)
