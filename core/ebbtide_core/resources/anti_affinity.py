"""Who is kept apart: scripts whose jobs, on one GPU, got on worse together than one after the other."""

from collections.abc import Mapping
from typing import Final

from ebbtide_core.estimates.work import Script, script_of
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, GpuId, JobId, NodeId
from ebbtide_core.resources.books import Books, Node

APART_S: Final = 24 * 3600.0
"""For how long two scripts are not put together again."""


class Pairs:
    """The pairs of scripts that are kept apart, each until a time; ``jobs`` are all there are."""

    def __init__(self, jobs: Mapping[JobId, Job]) -> None:
        self._jobs = jobs
        self._until: dict[frozenset[Script], float] = {}

    def remember(self, one: Job, other: Job, until: float) -> None:
        """Keep the scripts of the two apart."""
        if (pair := _pair(one, other)) is not None:
            self._until[pair] = until

    def forget(self, now: float) -> bool:
        """Let those try again whose time is up; whether any are left."""
        self._until = {pair: until for pair, until in self._until.items() if until > now}
        return bool(self._until)

    def gpus(self, job: JobId, node: Node) -> dict[GpuId, JobId]:
        """The GPUs of ``node`` that ``job`` must not share, and with whom."""
        found: dict[GpuId, JobId] = {}
        own = self._jobs[job]
        for other in (self._jobs[id] for id in node.planned if id != job):
            room = other.planned
            if room is not None and room.share < WHOLE and _pair(own, other) in self._until:
                found.update((piece.gpu, other.id) for piece in room.nodes[0].gpus)
        return found

    def forbid(self, job: Job, allocation: Allocation, nodes: Mapping[NodeId, Node]) -> bool:
        """Whether ``job`` must not have ``allocation`` as long as those stay who are to be there."""
        if allocation.share % WHOLE == 0:
            return False
        [piece] = allocation.nodes
        return piece.gpus[0].gpu in self.gpus(job.id, nodes[piece.node])


def kept_from(job: Job, books: Books, node: Node | None = None) -> str:
    """From whom ``job`` is kept apart, on ``node`` or anywhere, in words (``job 3, 5``); empty if from nobody there."""
    if books.anti_affinity is None or not 0 < job.gpus_min < WHOLE:
        return ""
    nodes = books.usable.values() if node is None else (node,)
    others = sorted({id for each in nodes for id in books.anti_affinity.gpus(job.id, each).values()})
    return f"job{'s' if len(others) > 1 else ''} {', '.join(others)}" if others else ""


def _pair(one: Job, other: Job) -> frozenset[Script] | None:
    scripts = script_of(one), script_of(other)
    return None if scripts[0] is None or scripts[1] is None else frozenset((scripts[0], scripts[1]))
