"""Names the state of a node and of a GPU, as they are shown."""

from typing import Final

from ebbtide_core.model.types import GpuId
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.foreign_processes import stray_on

GPU_STATES: Final = ("allocated", "idle", "foreign", "quarantined", "unhealthy", "unreachable")
NODE_STATES: Final = ("up", "down", "draining", "drained", "ended")


def state_of_node(node: Node, now: float) -> str:
    """Return the state of ``node`` at Unix time ``now``, as `ebb nodes` shows it."""
    if not node.connected:
        return "ended" if node.has_ended(now) else "down"
    if node.drain is None:
        return "up"
    return "draining" if node.attempts else "drained"


def state_of_gpu(node: Node, gpu: GpuId) -> str:
    """Return the first state that keeps the GPU from being allocated, or idle if there is none."""
    if gpu in node.quarantine:
        return "quarantined"
    if not node.gpus[gpu].healthy:
        return "unhealthy"
    if not node.connected:
        return "unreachable"
    if node.held.share(gpu):
        return "allocated"
    if stray_on(node, gpu) is not None:
        return "quarantined"
    return "foreign" if gpu in node.foreign and gpu not in node.beside else "idle"
