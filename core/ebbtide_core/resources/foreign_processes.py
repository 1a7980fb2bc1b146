"""Describes foreign processes: processes on GPUs that belong to no job, such as a desktop or a user past the cluster.

A GPU with a foreign process is not offered to further jobs until the process has left; jobs that are there go on. If
the node's administrator has allowed it, shares of such a GPU are offered all the same to jobs whose memory fits beside
the process. Such shares are used last, and the whole GPU is never offered.
"""

from typing import Final

from ebbtide_core.model.types import AttemptRef, ForeignProcess, GpuId
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.node_usage import ForeignUse

NEWS_BYTES: Final = 256 * 2**20
"""Changes of their memory up to this, in bytes, are not recorded, or the journal would grow with every reading."""
GPUS_NAMED: Final = 4
"""GPUs of one node that a reason lists."""


def is_change(known: tuple[ForeignProcess, ...], found: tuple[ForeignProcess, ...]) -> bool:
    """Return whether ``found`` has other processes, or memory that differs by over `NEWS_BYTES` or became (un)known."""
    if not known and not found:
        return False
    if {process.pid for process in known} != {process.pid for process in found}:
        return True
    before, after = ForeignUse(known, None).mem_bytes, ForeignUse(found, None).mem_bytes
    if before is None or after is None:
        return before is not after
    return abs(after - before) > NEWS_BYTES


def on_gpu(node: Node, gpu: GpuId) -> tuple[ForeignProcess, ...]:
    """Return the foreign processes on ``gpu``, as last reported."""
    use = node.foreign.get(gpu)
    return use.processes if use is not None else ()


def stray_on(node: Node, gpu: GpuId) -> AttemptRef | None:
    """Return the stray that has ``gpu`` (see `ebbtide_core.nodes.strays`); None if none has."""
    return next((ref for ref, stray in node.strays.items() if gpu in stray.gpus), None)


def held_by(job: str, attempt: int) -> str:
    """Return in words that a stray has a GPU."""
    return f"held by {job}.{attempt}, which is set aside"


def users_text(processes: tuple[ForeignProcess, ...]) -> str:
    """Return the processes on a GPU in words: ``alice's python (10 GiB) and 2 more processes``."""
    first = max(processes, key=lambda process: process.mem_bytes or 0)
    memory = f" ({first.mem_bytes / 2**30:.3g} GiB)" if first.mem_bytes is not None else ""
    whose = f"{first.user}'s {first.command or f'process {first.pid}'}" if first.user else f"process {first.pid}"
    more = len(processes) - 1
    return f"{whose}{memory}" + (f" and {more} more process{'es' if more > 1 else ''}" if more else "")


def in_the_way(node: Node) -> list[str]:
    """Return why GPUs of ``node`` are not on offer, in words by index; beyond `GPUS_NAMED` only their number."""
    by_index = sorted(node.gpus.values(), key=lambda facts: facts.index)
    found = []
    for facts in by_index:
        if (stray := stray_on(node, facts.gpu)) is not None:
            found.append(f"GPU {facts.index} is {held_by(stray.job, stray.attempt)}")
        elif not facts.healthy:
            kind = "quarantined" if facts.gpu in node.quarantine else "unusable"
            found.append(f"GPU {facts.index} is {kind}: {facts.unhealthy_reason or 'its node does not say why'}")
        elif processes := on_gpu(node, facts.gpu):
            found.append(f"GPU {facts.index} is used by {users_text(processes)}")
    more = len(found) - GPUS_NAMED
    return found[:GPUS_NAMED] + ([f"{more} more GPUs are not on offer"] if more > 0 else [])
