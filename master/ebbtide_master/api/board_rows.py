"""Makes the rows of the board: what everybody may see of nodes, GPUs, jobs and queues."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from ebbtide_core.job.job import Job
from ebbtide_core.measuring.rates import speed_now
from ebbtide_core.model.types import GpuId, JobClass, JobId, NodeId
from ebbtide_core.resources.bookings import reserved_for
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.foreign_processes import held_by, on_gpu, stray_on
from ebbtide_core.state import ClusterState
from ebbtide_core.views.states import state_of_gpu
from ebbtide_protos.spec import parts_to_share
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2

from ebbtide_master.api.views import GPU_STATE_NUMBERS, STATES, jobs_by_gpu, node_state, reason_of
from ebbtide_master.identity.visibility import has_own_reason, is_own, public_words

MOST_QUEUED: Final = 200
"""Jobs at the head of each queue whose places are sent."""
MOST_NODES_NAMED: Final = 4
"""Nodes of a job that are named; of the others only the number is sent."""

_CLASSES: Final = {one: job_pb2.JobClass.Value(f"JOB_CLASS_{one.name}") for one in JobClass}


def job_key(job: Job) -> tuple[object, ...]:
    """Return what has to be sent at once when it changes; the rest of a row, such as progress, may wait a moment."""
    allocation = job.live.allocation if job.live is not None and not job.live.off_gpu else None
    return (
        job.state, job.held_by, job.reason, len(job.attempts), job.priority, job.gpus_min, job.gpus_max, job.pool,
        job.suspending.preemptions, id(allocation),
        job.admission is not None and (job.admission.admitted, job.admission.why),
    )  # fmt: skip


def job_row(job: Job, now: float) -> client_pb2.BoardJob:
    """Return the row of one job."""
    live = job.live
    allocation = live.allocation if live is not None and not live.off_gpu else None
    nodes = allocation.node_ids if allocation is not None else ()
    progress = job.measured.progress
    row = client_pb2.BoardJob(
        job_id=job.id,
        name=job.spec.name,
        user=job.user,
        pool=job.pool,
        state=STATES[job.state],
        reason=reason_of(job),
        held_by=job.held_by.value if job.held_by is not None else "",
        gpus_min=parts_to_share(job.gpus_min),
        gpus_max=parts_to_share(job.gpus_max if job.admission is None else job.admission.asked),
        gpus_allocated=parts_to_share(allocation.share if allocation is not None else 0),
        job_class=_CLASSES[job.spec.job_class],
        priority=job.priority,
        submit_time=job.submitted,
        end_time=job.end.at if job.end is not None else None,
        waiting_s=job.waiting_s(now),
        running_s=job.running_s(now),
        at=now,
        step=progress.step if progress is not None else None,
        total=progress.total if progress is not None else None,
        steps_per_s=speed_now(job),
        attempt=len(job.attempts),
        preemptions=job.suspending.preemptions,
        array=job.lineage.task.array if job.lineage.task is not None else "",
        index=job.lineage.task.index if job.lineage.task is not None else 0,
        nodes=nodes[:MOST_NODES_NAMED],
        node_count=len(nodes),
    )
    own = is_own(row.held_by, row.attempt, row.state, has_own_reason(job))
    row.reason = "" if own else public_words(row.reason)
    return row


def node_row(node: Node) -> client_pb2.BoardNode:
    """Return what hardly ever changes about a node."""
    gpus = sorted(node.gpus.values(), key=lambda facts: facts.index)
    return client_pb2.BoardNode(
        name=node.id,
        pool=node.facts.pool,
        gpus=[
            client_pb2.BoardGpu(uuid=facts.gpu, index=facts.index, model=facts.model, mem_bytes=facts.mem_bytes)
            for facts in gpus
        ],
    )


def node_key(node: Node) -> tuple[object, ...]:
    """Return what has to be sent at once when it changes about a node, as cheaply as it can be had."""
    return (
        node.connected, node.dead, node.drain, len(node.attempts), len(node.on_gpus), id(node.gpus),
        tuple(node.quarantine), tuple(node.foreign),
    )  # fmt: skip


def load_row(
    state: ClusterState, node: Node, now: float, readings: Mapping[GpuId, agent_pb2.GpuReading]
) -> client_pb2.BoardLoad:
    """Return how a node and its GPUs are."""
    words, reason = node_state(node, now)
    on_gpus = jobs_by_gpu(state, node)
    return client_pb2.BoardLoad(
        name=node.id,
        state=words,
        reason="" if words == "down" and not node.dead else reason,  # how long it is silent changes by the second
        last_seen=0.0 if node.connected else node.last_seen,
        cpus=node.facts.cpus,
        cpus_allocated=node.held.cpus,
        mem_bytes=node.facts.mem_bytes,
        mem_allocated_bytes=node.held.mem_bytes,
        gpus=[
            _gpu_load(state, node, gpu, readings.get(gpu), on_gpus.get(gpu, ()))
            for gpu in sorted(node.gpus, key=lambda gpu: node.gpus[gpu].index)
        ],
    )


def _gpu_load(
    state: ClusterState, node: Node, gpu: GpuId, reading: agent_pb2.GpuReading | None, jobs: Iterable[JobId]
) -> client_pb2.GpuLoad:
    load = client_pb2.GpuLoad(state=GPU_STATE_NUMBERS[state_of_gpu(node, gpu)], why=_why(node, gpu))
    if reading is not None and node.connected:
        load.mem_used_bytes = reading.mem_used_bytes
        if reading.HasField("utilisation"):
            load.use = round(reading.utilisation, 2)
        if reading.HasField("temperature_c"):
            load.temperature_c = reading.temperature_c
        if reading.HasField("power_w"):
            load.power_w = round(reading.power_w)
    if state.bookings and (booking := state.bookings.next_on(node.id, gpu)) is not None:
        load.reserved = reserved_for(booking)
    used = _used_by_job(reading)
    for id in jobs:
        share = next(
            piece.share for part in state.jobs[id].attempts[-1].allocation for piece in part.gpus if piece.gpu == gpu
        )
        load.holders.add(job_id=id, share=parts_to_share(share), mem_used_bytes=used.get(id))
    return load


def _why(node: Node, gpu: GpuId) -> str:
    if gpu in node.quarantine:
        return node.quarantine[gpu]
    if not node.gpus[gpu].healthy:
        return node.gpus[gpu].unhealthy_reason
    if (stray := stray_on(node, gpu)) is not None:
        return held_by(stray.job, stray.attempt)
    users = sorted({found.user or "?" for found in on_gpu(node, gpu)})
    return f"used past the cluster by {', '.join(users)}" if users else ""


def _used_by_job(reading: agent_pb2.GpuReading | None) -> dict[str, int]:
    """Return the memory that each job's processes use, as far as it was read."""
    found = dict[str, int]()
    for process in reading.processes if reading is not None else ():
        if process.job_id and process.HasField("mem_bytes"):
            found[process.job_id] = found.get(process.job_id, 0) + process.mem_bytes
    return found


def queue_rows(state: ClusterState) -> list[client_pb2.BoardQueue]:
    """Return the heads of all queues."""
    return [
        client_pb2.BoardQueue(
            pool=name,
            job_ids=[job.id for job in islice(pool.queue, MOST_QUEUED)],
            length=len(pool.queue),
            policy=pool.settings.policy if pool.settings is not None else "",
        )
        for name, pool in state.pools.items()
    ]


def notices(state: ClusterState) -> client_pb2.BoardNotices:
    """Return what everybody should know of the cluster as a whole."""
    return client_pb2.BoardNotices(
        doubted=sorted(state.silent.doubted),
        unheard=sorted(state.unheard),
        recovering=bool(state.awaited or state.unheard),
        quiesced=state.quiesced,
    )


def nodes_of(job: Job) -> tuple[NodeId, ...]:
    """Return the nodes on which the newest attempt of a job is, or was."""
    return job.attempts[-1].allocation.node_ids if job.attempts else ()
