"""Stops the attempts whose GPU is lost.

The work on a GPU that is gone is lost. The attempt is asked to end, with a short grace period because its processes
often hang in the driver, and the job goes on elsewhere from its last checkpoint. That is no failure of the job, whether
its attempt ended by the request or failed before. A GPU that only fails to answer stops no job.
"""

from collections.abc import Iterator
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.job.job import Job
from ebbtide_core.model import limits
from ebbtide_core.model.types import SWAPPED_FOR, AttemptRef, GpuId, NodeId, StopCause
from ebbtide_core.nodes import node_health
from ebbtide_core.reconcile import stop
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState


def _stop_on(state: ClusterState, event: e.GpuHealthChanged) -> Iterator[e.Event]:
    """Stop every attempt that computes on the GPU of ``event``, or must come back to it, if that GPU is gone."""
    if not event.gone:
        return
    for job in list(state.jobs_on(state.nodes[event.node])):
        if _computes(job) and event.gpu in _gpus_on(job, event.node):
            yield _stop(job, event.node, event.gpu, event.reason)


def stop_missing(state: ClusterState, event: e.NodeRegistered) -> Iterator[e.Event]:
    """Stop the attempts on GPUs that the registered node does not have any more.

    A node that reports no GPU at all cannot ask its driver at the moment, which says nothing about its GPUs.
    """
    present = {facts.gpu for facts in event.gpus}
    for job in list(state.jobs_on(state.nodes[event.node])) if present else ():
        missing = [gpu for gpu in _gpus_on(job, event.node) if gpu not in present]
        if missing and _computes(job) and AttemptRef(job.id, len(job.attempts)) in event.known:
            yield _stop(job, event.node, missing[0], "its node does not have it any more")


def _computes(job: Job) -> bool:
    """Return whether a live attempt of ``job`` was not asked to end, or was only asked to move to host memory."""
    live = job.live
    return live is not None and (live.stop is None or (live.off_gpu and live.stop.cause in SWAPPED_FOR))


def _stop(job: Job, node: NodeId, gpu: GpuId, why: str) -> e.Event:
    grace_s = min(job.spec.grace_s, limits.LOST_GPU_GRACE_S)
    return stop(job, StopCause.LOST_GPU, f"GPU {gpu} of node {node} is lost: {why}", grace_s=grace_s)


def _gpus_on(job: Job, node: NodeId) -> list[GpuId]:
    pieces = [piece for piece in job.attempts[-1].allocation if piece.node == node]
    return [gpu.gpu for piece in pieces for gpu in piece.gpus]


def _say(event: e.GpuHealthChanged) -> str:
    return f"GPU {event.gpu} {'is usable again' if event.healthy else f'is unusable: {event.reason}'}"


RULES: Final = (
    Rule(
        e.GpuHealthChanged,
        news=node_health.is_known,
        apply=node_health.gpu_health_changed,
        decide=_stop_on,
        say=_say,
    ),
)
