"""Processes on GPUs that belong to no job: somebody computes past the cluster, or a desktop is drawn.

A GPU with one is offered to nobody new until it has left; jobs that are there go on. Where the node's administrator has
asked for it, shares of such GPUs are offered all the same, to those whose memory fits beside; they come last, and whole
GPUs never.
"""

from typing import Final

from ebbtide_core.model.types import AttemptRef, ForeignProcess, GpuId
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.node_usage import ForeignUse

NEWS_BYTES: Final = 256 * 2**20
"""A change of their memory by less than this is not told: the journal shall not grow with every reading."""
GPUS_NAMED: Final = 4
"""GPUs of one node that a reason lists."""


def is_change(known: tuple[ForeignProcess, ...], found: tuple[ForeignProcess, ...]) -> bool:
    """Whether ``found`` is news: other processes, or memory that differs by more than `NEWS_BYTES` or became known."""
    if not known and not found:
        return False
    if {process.pid for process in known} != {process.pid for process in found}:
        return True
    before, after = ForeignUse(known, None).mem_bytes, ForeignUse(found, None).mem_bytes
    if before is None or after is None:
        return before is not after
    return abs(after - before) > NEWS_BYTES


def on_gpu(node: Node, gpu: GpuId) -> tuple[ForeignProcess, ...]:
    """The processes of no job on ``gpu``, as they were told last."""
    use = node.foreign.get(gpu)
    return use.processes if use is not None else ()


def stray_on(node: Node, gpu: GpuId) -> AttemptRef | None:
    """The stray that has ``gpu``, if one has (see `ebbtide_core.nodes.strays`)."""
    return next((ref for ref, stray in node.strays.items() if gpu in stray.gpus), None)


def users_text(processes: tuple[ForeignProcess, ...]) -> str:
    """Who is on a GPU, in words: ``alice's python (10 GiB) and 2 more processes``."""
    first = max(processes, key=lambda process: process.mem_bytes or 0)
    memory = f" ({first.mem_bytes / 2**30:.3g} GiB)" if first.mem_bytes is not None else ""
    whose = f"{first.user}'s {first.command or f'process {first.pid}'}" if first.user else f"process {first.pid}"
    more = len(processes) - 1
    return f"{whose}{memory}" + (f" and {more} more process{'es' if more > 1 else ''}" if more else "")


def in_the_way(node: Node) -> list[str]:
    """Why GPUs of ``node`` are not on offer, in words, in order of index; the first `GPUS_NAMED`."""
    by_index = sorted(node.gpus.values(), key=lambda facts: facts.index)
    found = []
    for facts in by_index:
        if (stray := stray_on(node, facts.gpu)) is not None:
            found.append(f"GPU {facts.index} is held by {stray.job}.{stray.attempt}, which is set aside")
        elif not facts.healthy:
            kind = "quarantined" if facts.gpu in node.quarantine else "unusable"
            found.append(f"GPU {facts.index} is {kind}: {facts.unhealthy_reason or 'its node does not say why'}")
        elif processes := on_gpu(node, facts.gpu):
            found.append(f"GPU {facts.index} is used by {users_text(processes)}")
    more = len(found) - GPUS_NAMED
    return found[:GPUS_NAMED] + ([f"{more} more GPUs are not on offer"] if more > 0 else [])
