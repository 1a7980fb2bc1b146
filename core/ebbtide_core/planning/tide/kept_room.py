"""Finds where due jobs are expected to fit first, and keeps what is free there for them."""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from ebbtide_core.admission.queues import demand_of
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, GpuSlice, NodeAllocation, NodeId
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.preemption import could_make_room
from ebbtide_core.planning.tide.foresight import Foresight
from ebbtide_core.resources.node_usage import NodeUse

MOST_COMPARED: Final = 8
"""The nodes that are compared for where a due job fits first, or twice as many as that job takes."""


class KeptRoom:
    """The room of due jobs that wait, in one pass."""

    def __init__(self, draft: Draft, foresight: Foresight) -> None:
        self._draft = draft
        self._foresight = foresight
        self._first_rooms: dict[Hashable, tuple[list[NodeId], float]] = {}
        """Where due jobs are expected to fit first, by demand, until another job gets room."""
        self._changed = set[NodeId]()
        """The nodes where this pass changed who would have room."""
        self._fits_in: dict[Hashable, dict[NodeId, float | None]] = {}
        """In how many seconds jobs are expected to fit on each of these nodes, until something changes there again."""

    def note_changes(self, nodes: Iterable[NodeId]) -> None:
        """Forget what depends on who would have room on ``nodes``."""
        self._first_rooms.clear()
        self._changed.update(nodes)
        for by_node in self._fits_in.values():
            for id in nodes:
                by_node.pop(id, None)

    def first_room(self, job: Job) -> tuple[list[NodeId], float]:
        """Return where ``job`` is expected to fit first, and in how many seconds; no nodes if nowhere."""
        found = self._first_rooms.get(demand := demand_of(job))
        if found is None:
            found = self._first_rooms[demand] = self._search_first_room(job)
        return found

    def _search_first_room(self, job: Job) -> tuple[list[NodeId], float]:
        spec, need, demand = job.spec, -(-job.gpus_min // WHOLE), demand_of(job)
        gang, each = self._draft.trial.is_gang(job), need // spec.nodes
        found, sought = list[tuple[float, int, NodeId]](), 2 * need
        rates, changed = self._foresight.index.rates, self._fits_in.setdefault(demand, {})
        known = rates.fits_in(demand)
        for _, number, id in rates.soonest_first(job, each, gang=gang):
            wanted = min(each, len(self._draft.snapshot.nodes[id].slices)) if gang else need
            fits_in = changed if id in self._changed else known
            if id not in fits_in:
                fits_in[id] = self._fits_in_s(job, id, wanted)
            at = fits_in[id]
            if at is not None and (wanted or not gang):
                found.append((at, number, id))
                sought -= wanted
                if sought <= 0 and len(found) >= max(MOST_COMPARED, 2 * spec.nodes):
                    break
        found.sort()
        nodes, gpus = list[NodeId](), 0
        for at, _, id in found:
            nodes.append(id)
            gpus += min(each, len(self._draft.snapshot.nodes[id].slices))
            if gpus >= need and len(nodes) >= spec.nodes:
                return nodes, at
        return [], math.inf

    def _fits_in_s(self, job: Job, id: NodeId, gpus: int) -> float | None:
        """Return in how many seconds ``job`` is expected to have so many GPUs of that node; None if it never has."""
        draft, spec, node = self._draft, job.spec, self._draft.snapshot.nodes[id]
        if len(node.slices) < gpus:
            return None
        there = [entry for entry in self._foresight.leaving(id) if entry[2].id not in draft.evictions]
        rooms = [(left_s, room) for left_s, _, other in there if (room := other.planned) is not None]
        if not draft.trial.is_gang(job) and not could_make_room(draft, job, [room for _, room in rooms], id):
            return None
        use = draft.trial.use(id)
        idle, cpus, mem_bytes = node.idle(use), node.facts.cpus - use.cpus, node.facts.mem_bytes - use.mem_bytes
        at, most, in_use = 0.0, max(0, WHOLE - job.gpus_min), dict(use.shares)
        idle += sum([share <= most for share in in_use.values()])
        pieces = ((left_s, piece) for left_s, room in rooms for piece in room.nodes if piece.node == id)
        for left_s, piece in pieces:
            if idle >= gpus and cpus >= spec.cpus and mem_bytes >= spec.mem_bytes:
                break
            at = left_s
            for gpu in piece.gpus:
                before = in_use.get(gpu.gpu, WHOLE)
                after = in_use[gpu.gpu] = before - gpu.share
                idle += after <= most < before
            cpus, mem_bytes = cpus + piece.cpus, mem_bytes + piece.mem_bytes
        return at if idle >= gpus and cpus >= spec.cpus and mem_bytes >= spec.mem_bytes else None

    def keep(self, job: Job, where: Sequence[NodeId]) -> None:
        """Keep what ``job`` needs of what is free on the nodes ``where``, so that no job behind it gets that.

        Where whole GPUs are missing, it keeps what is left of shared ones, of those first that have most left.
        """
        left, pieces = -(-job.gpus_min // WHOLE), list[NodeAllocation]()
        for id in where:
            node, use = self._draft.snapshot.nodes[id], self._draft.trial.use(id)
            idle = [whole for whole in node.slices.values() if use.share(whole.gpu) == 0][:left]
            shared = [whole for whole in node.slices.values() if 0 < use.share(whole.gpu) < WHOLE]
            shared.sort(key=lambda whole: use.share(whole.gpu))
            parts = [_rest(whole, use) for whole in shared[: left - len(idle)]]
            left -= len(node.slices) if len(where) > 1 else len(idle)
            cpus = min(job.spec.cpus, max(0.0, node.facts.cpus - use.cpus))
            mem_bytes = min(job.spec.mem_bytes, max(0, node.facts.mem_bytes - use.mem_bytes))
            if idle or parts or cpus or mem_bytes:
                pieces.append(NodeAllocation(id, (*idle, *parts), cpus, mem_bytes))
        if pieces:
            self._draft.trial.take(Allocation(tuple(pieces)))
            self.note_changes([piece.node for piece in pieces])


def _rest(whole: GpuSlice, use: NodeUse) -> GpuSlice:
    """Return what is left of a GPU that jobs share."""
    return GpuSlice(whole.gpu, WHOLE - use.share(whole.gpu), whole.mem_bytes - use.gpu_mem.get(whole.gpu, 0))
