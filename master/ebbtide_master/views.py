"""What clients are shown: messages made from the core's objects."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ebbtide_core.books import Node
from ebbtide_core.cluster import Cluster
from ebbtide_core.codec import encode
from ebbtide_core.events import JobSubmitted
from ebbtide_core.explain import Explanation
from ebbtide_core.foreign import on_gpu
from ebbtide_core.job import Attempt, Job, Suspension
from ebbtide_core.model import Allocation, GpuId, JobId, JobState
from ebbtide_core.narrate import narrate
from ebbtide_core.notice_rules import public
from ebbtide_core.parts import parts_of
from ebbtide_core.rates import speed_now
from ebbtide_protos.spec import parts_to_share, spec_to_message
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2

from ebbtide_master.convert import CHECKPOINTED_MESSAGES, slices_to_messages
from ebbtide_master.store import StoredEvent

_STATES = {state: getattr(job_pb2, f"JOB_STATE_{state.name}") for state in JobState}


def job_message(job: Job, now: float) -> client_pb2.Job:
    """Everything on one job."""
    live = job.live
    allocation = live.allocation if live is not None and not live.off_gpu else None
    notify = public(job.spec.notify) if job.spec.notify else ()
    spec = replace(
        job.spec, notify=notify, gpus_min=job.gpus_min, gpus_max=job.gpus_max, priority=job.priority, weight=job.weight
    )
    started = next((attempt.first_started for attempt in job.attempts if attempt.first_started is not None), None)
    return client_pb2.Job(
        job_id=job.id,
        spec=spec_to_message(spec),
        user=job.user,
        state=_STATES[job.state],
        reason=job.reason,
        held_by=job.held_by.value if job.held_by is not None else "",
        preemptible=job.preemptible,
        gpus_allocated=parts_to_share(allocation.share if allocation is not None else 0),
        allocation=_allocation_messages(allocation),
        attempt=len(job.attempts),
        preemptions=job.preemptions,
        resizes=job.resizes,
        restarts=job.restarts,
        progress=_progress_message(job),
        submit_time=job.submitted,
        start_time=started,
        end_time=job.ended,
        waiting_s=job.waiting_s(now),
        running_s=job.running_s(now),
        exit_code=job.exit_code if job.state.finished else None,
        checkpoint=_checkpoint_message(job),
        suspensions=[_suspension_message(job, suspension) for suspension in job.suspensions],
        attempts=[_attempt_message(attempt) for attempt in job.attempts],
        pid=live.pid if live is not None else 0,
        proved=job.proved,
        save_s=job.save_s,
        restart_cost_s=job.restart_cost_s,
        gpu_mem_bytes=job.gpu_mem_bytes,
        gpu_mem_from=job.gpu_mem_from,
        rates=_rate_messages(job),
        steps_per_s=speed_now(job),
    )


def submit_reply(id: JobId, job: Job | None) -> client_pb2.SubmitReply:
    """What they are told who submitted ``job``, of that ``id``; None if it is over and forgotten."""
    if job is None or not job.gpu_mem_from:
        return client_pb2.SubmitReply(job_id=id)
    return client_pb2.SubmitReply(job_id=id, gpu_mem_bytes=job.gpu_mem_bytes, gpu_mem_from=job.gpu_mem_from)


def explanation_message(job: Job, explanation: Explanation) -> client_pb2.Explanation:
    """Why a job waits."""
    source = explanation.remaining_from
    return client_pb2.Explanation(
        job_id=job.id,
        state=job.state.value,
        reason=job.reason,
        needs=explanation.needs,
        ahead=explanation.ahead,
        nodes=[
            client_pb2.NodeView(node=view.node, idle_gpus=view.idle, gpus=view.gpus, obstacle=view.obstacle)
            for view in explanation.nodes
        ],
        room_at=explanation.room_at,
        basis=explanation.basis,
        remaining_s=explanation.remaining_s,
        remaining_from=source.value if source is not None else "",
    )


def _rate_messages(job: Job) -> Iterator[client_pb2.Rate]:
    for at, rate in job.rates.items():
        yield client_pb2.Rate(
            gpus=parts_to_share(at.share),
            nodes=at.nodes,
            alone=at.alone,
            steps_per_s=rate.steps_per_s,
            samples=rate.samples,
            model=at.model,
        )


def _progress_message(job: Job) -> job_pb2.Progress | None:
    if job.progress is None:
        return None
    return job_pb2.Progress(step=job.progress.step, total=job.progress.total, loss=job.progress.loss)


def _checkpoint_message(job: Job) -> job_pb2.Checkpoint | None:
    if (found := job.checkpoint) is None:
        return None
    return job_pb2.Checkpoint(step=found.step, bytes=found.bytes, path=found.path, verified=found.verified)


def _suspension_message(job: Job, suspension: Suspension) -> client_pb2.Suspension:
    return client_pb2.Suspension(
        requested=suspension.requested,
        exited=suspension.exited,
        gpu_free=suspension.gpu_free,
        resumed=suspension.resumed,
        checkpointed=CHECKPOINTED_MESSAGES[suspension.checkpointed],
        reason=suspension.reason,
        gpu_uuids_before=suspension.gpus_before,
        gpu_uuids_after=suspension.gpus_after,
        checkpoint_s=suspension.checkpoint_s,
        checkpoint_bytes=suspension.checkpoint_bytes,
        note=suspension.note,
        parts_s=parts_of(job, suspension),
        placed=suspension.placed,
        working=suspension.working,
        working_step=suspension.working_step,
        left_step=suspension.left_step,
    )


def _attempt_message(attempt: Attempt) -> client_pb2.AttemptSummary:
    return client_pb2.AttemptSummary(
        attempt=attempt.number,
        placed_time=attempt.placed,
        start_time=attempt.first_started,
        warm=None if attempt.start is None else attempt.start.warm,
        end_time=attempt.exited,
        allocation=_allocation_messages(attempt.allocation),
        outcome=attempt.outcome,
        resumed_step=attempt.resumed_step,
        sharing=attempt.sharing.way if attempt.sharing is not None else "",
        limited_by=attempt.sharing.limited_by if attempt.sharing is not None else "",
        pid=attempt.pid,
        gpu_mem_peak_bytes=None if attempt.exit is None else attempt.exit.gpu_mem_peak_bytes,
    )


def _allocation_messages(allocation: Allocation | None) -> list[client_pb2.NodeAllocation]:
    if allocation is None:
        return []
    return [client_pb2.NodeAllocation(node=piece.node, gpus=slices_to_messages(piece.gpus)) for piece in allocation]


def event_message(stored: StoredEvent) -> client_pb2.Event:
    """One line of the journal, in words and as JSON."""
    event = stored.event
    if isinstance(event, JobSubmitted) and event.spec.notify:
        event = replace(event, spec=replace(event.spec, notify=public(event.spec.notify)))
    return client_pb2.Event(
        sequence=stored.sequence,
        time=stored.time,
        kind=type(event).__name__,
        job_id=getattr(event, "job", ""),
        node=getattr(event, "node", ""),
        text=narrate(event),
        json=json.dumps(encode(event), allow_nan=False),
    )


def node_message(
    node: Node,
    cluster: Cluster,
    now: float,
    readings: Mapping[GpuId, agent_pb2.GpuReading],
    hello: agent_pb2.Hello | None,
) -> client_pb2.Node:
    """One node, its GPUs, and who is on them; ``hello`` is None if it is not connected."""
    facts = node.facts
    infos = {GpuId(info.uuid): info for info in hello.gpus} if hello is not None else {}
    if node.connected:
        state, reason = "up", ""
    else:
        state, reason = "down", f"silent for {max(0.0, now - node.last_seen):.0f} s"
    by_index = sorted(node.gpus, key=lambda gpu: node.gpus[gpu].index)
    return client_pb2.Node(
        name=node.id,
        hostname=facts.hostname,
        state=state,
        reason=reason,
        gpus=[_node_gpu(node, gpu, cluster, readings.get(gpu), infos.get(gpu)) for gpu in by_index],
        cpus=facts.cpus,
        cpus_allocated=node.held.cpus,
        mem_bytes=facts.mem_bytes,
        mem_allocated_bytes=node.held.mem_bytes,
        gpu_backend=facts.gpu_backend,
        checkpoint_root_id=facts.checkpoint_root_id,
        last_seen=now if node.connected else node.last_seen,
        version=facts.version,
        cgroup=hello.cgroup if hello is not None else None,
    )


def _node_gpu(
    node: Node,
    gpu: GpuId,
    cluster: Cluster,
    reading: agent_pb2.GpuReading | None,
    described: agent_pb2.GpuInfo | None,
) -> client_pb2.NodeGpu:
    facts = node.gpus[gpu]
    place = described or agent_pb2.GpuInfo()  # on the bus, which the core does without
    info = agent_pb2.GpuInfo(
        uuid=gpu,
        index=facts.index,
        model=facts.model,
        mem_bytes=facts.mem_bytes,
        healthy=facts.healthy,
        unhealthy_reason=facts.unhealthy_reason,
        mps=facts.mps,
        pci_bus_id=place.pci_bus_id,
        numa_node=place.numa_node if place.HasField("numa_node") else None,
        compute_capability=place.compute_capability,
        parent=place.parent,
        peers=place.peers,
    )
    here = [job for job in cluster.state.jobs_on(node) if not job.off_gpu]
    jobs = [job.id for job in here if gpu in job.attempts[-1].allocation.gpu_ids]
    share = parts_to_share(node.held.share(gpu))
    others = [
        agent_pb2.GpuProcess(pid=found.pid, mem_bytes=found.mem_bytes, user=found.user, command=found.command)
        for found in on_gpu(node, gpu)
    ]
    return client_pb2.NodeGpu(info=info, reading=reading, share_allocated=share, job_ids=jobs, foreign=others)
