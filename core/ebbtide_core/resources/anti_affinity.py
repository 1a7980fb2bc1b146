"""Keeps scripts apart whose jobs made less progress together on one GPU than one after the other."""

from collections.abc import Mapping
from typing import Final

from ebbtide_core.estimates.work import Script, script_of
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, GpuId, JobId, NodeId
from ebbtide_core.resources.books import Books, Node

APART_S: Final = 24 * 3600.0
"""Seconds for which two scripts do not share a GPU again."""


class Pairs:
    """The pairs of scripts that are kept apart, each until a Unix time; ``jobs`` are all jobs of the cluster."""

    def __init__(self, jobs: Mapping[JobId, Job]) -> None:
        self._jobs = jobs
        self._until: dict[frozenset[Script], float] = {}

    def remember(self, one: Job, other: Job, until: float) -> None:
        """Keep the scripts of the two jobs apart until Unix time ``until``."""
        if (pair := _pair(one, other)) is not None:
            self._until[pair] = until

    def forget(self, now: float) -> bool:
        """Forget the pairs whose time is up; return whether any are left."""
        self._until = {pair: until for pair, until in self._until.items() if until > now}
        return bool(self._until)

    def gpus(self, job: JobId, node: Node) -> dict[GpuId, JobId]:
        """Return the GPUs of ``node`` that ``job`` must not share, each with the other job there."""
        found: dict[GpuId, JobId] = {}
        own = self._jobs[job]
        for other in (self._jobs[id] for id in node.planned if id != job):
            room = other.planned
            if room is not None and room.share < WHOLE and _pair(own, other) in self._until:
                found.update((piece.gpu, other.id) for piece in room.nodes[0].gpus)
        return found

    def forbid(self, job: Job, allocation: Allocation, nodes: Mapping[NodeId, Node]) -> bool:
        """Return whether ``job`` must not have ``allocation`` because of the jobs that have room promised there."""
        if allocation.share % WHOLE == 0:
            return False
        [piece] = allocation.nodes
        return piece.gpus[0].gpu in self.gpus(job.id, nodes[piece.node])


def kept_from(job: Job, books: Books, node: Node | None = None) -> str:
    """Return the jobs that ``job`` is kept apart from, on ``node`` or anywhere, as ``jobs 3, 5``; empty if none."""
    if books.anti_affinity is None or not 0 < job.gpus_min < WHOLE:
        return ""
    nodes = books.usable.values() if node is None else (node,)
    others = sorted({id for each in nodes for id in books.anti_affinity.gpus(job.id, each).values()})
    return f"job{'s' if len(others) > 1 else ''} {', '.join(others)}" if others else ""


def _pair(one: Job, other: Job) -> frozenset[Script] | None:
    scripts = script_of(one), script_of(other)
    return None if scripts[0] is None or scripts[1] is None else frozenset((scripts[0], scripts[1]))
