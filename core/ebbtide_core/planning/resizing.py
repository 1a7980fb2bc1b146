"""Finds an allocation of another size for a job with as little change as possible."""

from collections.abc import Callable

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, GpuSlice, NodeAllocation
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.seats import size_at_most, sizes
from ebbtide_core.resources.gpu_selection import memory_of
from ebbtide_core.resources.placing import Trial
from ebbtide_core.resources.topology import best_of

Why = Callable[[Job], str]
"""The reason for a job's size, in words."""


def shrunk(trial: Trial, job: Job, allocation: Allocation, share: int) -> Allocation | None:
    """Return ``share`` parts of the GPUs of ``allocation``, which has more: the best connected ones, else the first.

    A job that fits on one node at that size is not spread: it keeps only what it has on one node, even if that is less
    than ``share``; return None if it is less than the job's smallest size.
    """
    if share < WHOLE:
        return _shared(trial, job, allocation.nodes[0], share)
    pieces, left = allocation.nodes, share // WHOLE
    if len(pieces) > 1 and not trial.is_gang(job, share):
        pieces = (max(pieces, key=lambda piece: len(piece.gpus)),)
    kept = []
    for piece in pieces:
        if left:
            node = trial.nodes.get(piece.node)
            gpus = best_of(node.topology if node is not None else None, piece.gpus, left)
            kept.append(NodeAllocation(piece.node, gpus, piece.cpus, piece.mem_bytes))
            left -= len(gpus)
    smaller = Allocation(tuple(kept))
    return smaller if smaller.share >= job.gpus_min else None


def _shared(trial: Trial, job: Job, piece: NodeAllocation, share: int) -> Allocation:
    whole = trial.nodes[piece.node].slices[piece.gpus[0].gpu]
    memory = memory_of(job, share, whole)
    return Allocation((NodeAllocation(piece.node, (GpuSlice(whole.gpu, share, memory),), piece.cpus, piece.mem_bytes),))


def shrunk_on(before: Allocation, after: Allocation) -> bool:
    """Return whether ``after`` uses no GPU that ``before`` did not, and no more in total."""
    return after.share <= before.share and set(after.gpu_ids) <= set(before.gpu_ids)


def on_own_gpus(draft: Draft, job: Job, allocation: Allocation, share: int) -> Allocation | None:
    """Return ``share`` parts of the ``allocation`` that ``job`` had; None if it had less, or others took them."""
    held = allocation.share
    if held < share:
        return None
    kept = allocation if held == share else shrunk(draft.trial, job, allocation, share)
    return kept if kept is not None and fits_beside(draft.trial, kept) else None


def fits_beside(trial: Trial, allocation: Allocation) -> bool:
    """Return whether ``allocation`` fits beside all that is in use."""
    return all(
        piece.node in trial.nodes and trial.nodes[piece.node].fits(piece, trial.use(piece.node))
        for piece in allocation.nodes
    )


def grown(trial: Trial, job: Job, allocation: Allocation, share: int) -> Allocation | None:
    """Return room for ``job`` with ``share`` parts, or as much more than ``allocation`` as there is; None if no more.

    The job keeps its GPUs and gets more on its nodes if possible; it moves to other GPUs only for the full ``share``.
    """
    if allocation.share >= WHOLE and (bigger := trial.grown(job, allocation, share)) is not None:
        return bigger
    trial.give(allocation)
    found = trial.find(job, share, allocation.node_ids) or trial.find(job, share)
    if found is None and allocation.share < WHOLE:
        found = _biggest(trial, job, allocation, share)
    trial.take(allocation)
    if found is not None or allocation.share < WHOLE:
        return found
    size = allocation.share + trial.idle_beside(job, allocation) * WHOLE
    return trial.grown(job, allocation, size) if max(job.gpus_min, allocation.share + 1) <= size else None


def _biggest(trial: Trial, job: Job, allocation: Allocation, share: int) -> Allocation | None:
    """Return room on the same nodes for the greatest size above the present one and below ``share``; None if none."""
    between = [size for size in sizes(job.gpus_min, size_at_most(job, share)) if allocation.share < size < share]
    for size in reversed(between):
        if (found := trial.find(job, size, allocation.node_ids)) is not None:
            return found
    return None
