"""Picks the GPUs of one node that a job would get, and the memory that it gets of a shared GPU."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import chain, filterfalse, islice
from typing import Final

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, GpuId, GpuSlice, SuspendMode
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.node_usage import NodeUse
from ebbtide_core.resources.topology import Topology

CONTEXT_BYTES: Final = 600 * 2**20
"""GPU memory that CUDA uses per process besides the process's own data: 300 to 600 MiB, by driver and libraries."""


def pick(
    job: Job, share: int, node: Node, use: NodeUse, beside: Collection[GpuId] | None = None
) -> tuple[GpuSlice, ...] | None:
    """Return the GPUs of ``node`` that ``job`` would get beside ``use``; None if there are too few.

    ``beside`` are other GPUs that the job has on this node: empty if its other GPUs are all on other nodes, None if it
    has no other GPUs.
    """
    if share == 0:
        return ()
    if share < WHOLE:
        return _pick_shared(job, share, node, use)
    count, memory = share // WHOLE, job.gpu_memory.requested_bytes
    if node.topology is not None:
        return _pick_linked(job, count, node, node.topology, use, beside)
    if node.held is use and not (job.attempts or memory or use.whole or use.shares):
        return node.entire.gpus[:count] if count <= len(node.slices) else None
    own = _own_gpus(job)
    if not own:
        free = _first_free(node, count, memory, use)
        if len(free) == count:
            return tuple(free)
    # Take the job's own GPUs first, then GPUs that are not held, then GPUs that are being freed.
    idle = list(_idle(node, memory, use))
    chosen = {piece.gpu: piece for piece in idle if piece.gpu in own}
    for piece in chain(_idle(node, memory, use, node.held), idle):
        if len(chosen) >= count:
            break
        chosen[piece.gpu] = piece
    if len(chosen) < count:
        return None
    ids = set(islice(chosen, count))
    return tuple(piece for piece in idle if piece.gpu in ids)


def _pick_linked(
    job: Job, count: int, node: Node, topology: Topology, use: NodeUse, beside: Collection[GpuId] | None
) -> tuple[GpuSlice, ...] | None:
    """Do as `pick` on a node with a topology. Only a job on one GPU gets a MIG slice."""
    alone, memory = count == 1 and beside is None, job.gpu_memory.requested_bytes
    idle = {piece.gpu: piece for piece in _idle(node, memory, use) if alone or piece.gpu not in topology.slices}
    own = idle.keys() & _own_gpus(job)
    now = idle.keys() & {piece.gpu for piece in _idle(node, memory, use, node.held)}
    chosen: frozenset[GpuId] = frozenset()
    for pool in (own, now, idle.keys()):
        rest = pool - chosen
        if len(chosen) + len(rest) < count:
            chosen |= rest
            continue
        more = topology.choose(rest, count - len(chosen), idle.keys(), chosen | set(beside or ()))
        return tuple(piece for id, piece in idle.items() if id in chosen or id in more)
    return None


def _idle(node: Node, memory: int, *uses: NodeUse) -> Iterator[GpuSlice]:
    """Return the GPUs of ``node`` with at least ``memory`` bytes that are in none of ``uses``, in order of index."""
    ids: Iterator[GpuId] = iter(node.slices)
    for use in uses:
        for taken in (use.whole, use.shares):
            if taken:
                ids = filterfalse(taken.__contains__, ids)
    pieces = map(node.slices.__getitem__, ids)
    return (piece for piece in pieces if piece.mem_bytes >= memory) if memory else pieces


def _first_free(node: Node, count: int, memory: int, use: NodeUse) -> list[GpuSlice]:
    """Return the first ``count`` of the GPUs that are in neither ``use`` nor held, or as many as there are."""
    # This runs for every placement of whole GPUs, so it is spelled out.
    free = list[GpuSlice]()
    whole, shares, held, shared = use.whole, use.shares, node.held.whole, node.held.shares
    for id, piece in node.slices.items():
        if id not in whole and id not in held and id not in shares and id not in shared and piece.mem_bytes >= memory:
            free.append(piece)
            if len(free) == count:
                break
    return free


def memory_of(job: Job, share: int, whole: GpuSlice) -> int:
    """Return how much memory, in bytes, ``job`` gets of a ``whole`` GPU of which it gets ``share``.

    By default memory is in proportion to the share. If the submitter named what the job's data need, it is that plus
    `CONTEXT_BYTES`; a need that was measured since counts as it is, because it includes CUDA's memory.
    """
    return _bytes_of(job, share, whole.mem_bytes)


def _bytes_of(job: Job, share: int, whole_bytes: int) -> int:
    needed = job.gpu_memory.requested_bytes
    if not needed:
        return whole_bytes * share // WHOLE
    if needed != job.spec.gpu_mem_bytes:
        return needed
    return max(needed, min(needed + CONTEXT_BYTES, whole_bytes))


def left_over(job: Job, share: int, whole: GpuSlice, offered: GpuSlice, use: NodeUse) -> float | None:
    """Return what ``use`` and ``job`` would leave of the ``offered`` part of a ``whole`` GPU; None if it does not fit.

    The smaller the number, the better the fit. It is the sum of the share and the memory that are left, each relative
    to the whole GPU.
    """
    free_bytes = offered.mem_bytes - use.gpu_mem.get(whole.gpu, 0)
    return left_beside(job, share, use.share(whole.gpu), free_bytes, whole.mem_bytes)


def left_beside(job: Job, share: int, used: int, free_bytes: int, whole_bytes: int) -> float | None:
    """Do as `left_over` for a GPU with ``whole_bytes``, of which ``free_bytes`` are free and ``used`` parts are not."""
    share_left = WHOLE - used - share
    memory_left = free_bytes - _bytes_of(job, share, whole_bytes)
    if share_left < 0 or memory_left < 0:
        return None
    return share_left / WHOLE + memory_left / (whole_bytes or 1)


def _pick_shared(job: Job, share: int, node: Node, use: NodeUse) -> tuple[GpuSlice, ...] | None:
    """Return ``share`` of one GPU that has it and the memory left; None if there is none.

    The job's own GPU comes first, then GPUs where the share is not held any more, then the GPU with least left. GPUs
    with foreign processes come last, if they are offered at all.
    """
    best: tuple[tuple[bool, bool, float], GpuSlice] | None = None
    own, swaps = _own_gpus(job), job.spec.suspend is SuspendMode.SWAP
    most, taken, shares = WHOLE - share, use.whole, use.shares  # GPUs in use by more are ruled out cheaply
    for offers in (node.slices, node.beside):
        seen = set[tuple[int, int, int, int, bool, bool]]()
        for id, offered in offers.items():
            if id in taken or shares.get(id, 0) > most:
                continue
            if swaps and node.gpus[id].mps and use.share(id):
                continue  # because the driver cannot swap out a process under an MPS server
            whole = offered if offers is node.slices else replace(offered, mem_bytes=node.gpus[id].mem_bytes)
            leaving, mine = node.held.share(id) + share > WHOLE, id in own
            state = shares.get(id, 0), use.gpu_mem.get(id, 0), offered.mem_bytes, whole.mem_bytes, leaving, mine
            if state in seen:
                continue  # because the first of several equally good GPUs is taken
            seen.add(state)
            if (left := left_over(job, share, whole, offered, use)) is None:
                continue
            cost = (leaving and not mine, not mine, left)
            if best is None or cost < best[0]:
                best = cost, GpuSlice(id, share, memory_of(job, share, whole))
        if best is not None:
            return (best[1],)
    return None


def _own_gpus(job: Job) -> frozenset[GpuId]:
    holding = job.holding
    return frozenset(holding.allocation.gpu_ids) if holding is not None else frozenset()
