"""Processes on GPUs that belong to no job: somebody computes past the cluster, or a desktop is drawn.

A GPU with one is offered to nobody new until it has left; jobs that are there go on. Where the node's administrator has
asked for it, shares of such GPUs are offered all the same, to those whose memory fits beside; they come last, and whole
GPUs never. The time is counted by user, each GPU-second divided equally among the users on it.
"""

from typing import Final

from ebbtide_core.books import Node
from ebbtide_core.events import ForeignUseChanged
from ebbtide_core.model import AttemptRef, ForeignProcess, GpuId
from ebbtide_core.state import ClusterState
from ebbtide_core.use import ForeignUse

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


def is_news(state: ClusterState, event: ForeignUseChanged) -> bool:
    """Whether its node has such a GPU, and anything on it is different now."""
    node = state.nodes.get(event.node)
    return node is not None and event.gpu in node.gpus and is_change(on_gpu(node, event.gpu), event.processes)


def on_gpu(node: Node, gpu: GpuId) -> tuple[ForeignProcess, ...]:
    """The processes of no job on ``gpu``, as they were told last."""
    use = node.foreign.get(gpu)
    return use.processes if use is not None else ()


def changed(state: ClusterState, event: ForeignUseChanged, now: float) -> None:
    node = state.nodes[event.node]
    before = node.foreign.pop(event.gpu, None)
    if before is not None:
        _add(state.foreign_gpu_s, before, now)
    if event.processes:
        node.foreign[event.gpu] = ForeignUse(event.processes, now)
    state.refresh_node(node)
    state.pool_of(node).roomier.add(node.id)


def count(state: ClusterState, node: Node, now: float, *, goes_on: bool) -> None:
    """Add up the time of all of them on ``node``; from ``now`` on it is counted only if that ``goes_on``."""
    for use in node.foreign.values():
        _add(state.foreign_gpu_s, use, now)
        use.since = now if goes_on else None


def gpu_seconds(state: ClusterState, now: float) -> dict[str, float]:
    """The GPU-seconds that users have had past the cluster until ``now``."""
    total = dict(state.foreign_gpu_s)
    for node in state.nodes.values():
        for use in node.foreign.values():
            _add(total, use, now)
    return total


def _add(total: dict[str, float], use: ForeignUse, now: float) -> None:
    if use.since is None:
        return
    users = {process.user for process in use.processes}
    for user in users:
        total[user] = total.get(user, 0.0) + max(0.0, now - use.since) / len(users)


def stray_on(node: Node, gpu: GpuId) -> AttemptRef | None:
    """The stray that has ``gpu``, if one has (see `ebbtide_core.strays`)."""
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
