"""Makes the messages that clients get from the core's objects."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ebbtide_core.admission.gates import held_back
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import JobSubmitted
from ebbtide_core.events.codec import encode
from ebbtide_core.job.job import Attempt, Job, Suspension
from ebbtide_core.measuring.rates import speed_now
from ebbtide_core.model import limits
from ebbtide_core.model.notice_rules import public
from ebbtide_core.model.types import Allocation, AttemptRef, Drain, GpuId, JobId, JobState
from ebbtide_core.nodes.draining import DrainForecast
from ebbtide_core.resources.bookings import reserved_for
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.foreign_processes import on_gpu
from ebbtide_core.resources.node_usage import Stray
from ebbtide_core.state import ClusterState
from ebbtide_core.views.narrate import narrate
from ebbtide_core.views.states import GPU_STATES, state_of_gpu, state_of_node
from ebbtide_core.views.suspend_breakdown import parts_of
from ebbtide_protos.spec import parts_to_share, spec_to_message
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2

from ebbtide_master.convert import CHECKPOINTED_MESSAGES, slices_to_messages
from ebbtide_master.identity.visibility import has_own_reason
from ebbtide_master.store.journal import StoredEvent

PAGE: Final = 50
"""Jobs that are put into an answer at a time, which takes the master a few milliseconds."""
GPU_STATE_NUMBERS: Final = {state: client_pb2.GpuState.Value(f"GPU_STATE_{state.upper()}") for state in GPU_STATES}
STATES = {state: getattr(job_pb2, f"JOB_STATE_{state.name}") for state in JobState}


def job_message(job: Job, now: float, *, in_list: bool = False) -> client_pb2.Job:
    """Return the message for all of one job; if ``in_list``, a long command is cut."""
    live = job.live
    allocation = live.allocation if live is not None and not live.off_gpu else None
    notify = public(job.spec.notify) if job.spec.notify else ()
    asked = job.gpus_max if job.admission is None else job.admission.asked
    spec = replace(
        job.spec,
        command=listed_command(job.spec.command) if in_list else job.spec.command,
        gpus_min=job.gpus_min,
        gpus_max=asked,
        priority=job.priority,
        weight=job.weight,
        script="",
    )
    spec = replace(spec, env={}) if spec.env else spec
    spec = spec if not notify else replace(spec, notify=notify)
    started = next((attempt.first_started for attempt in job.attempts if attempt.first_started is not None), None)
    return client_pb2.Job(
        job_id=job.id,
        spec=spec_to_message(spec),
        user=job.user,
        state=STATES[job.state],
        reason=reason_of(job),
        held_by=job.held_by.value if job.held_by is not None else "",
        preemptible=job.preemptible,
        gpus_allocated=parts_to_share(allocation.share if allocation is not None else 0),
        allocation=_allocation_messages(allocation),
        attempt=len(job.attempts),
        preemptions=job.suspending.preemptions,
        resizes=job.suspending.resizes,
        restarts=job.retries.restarts,
        progress=_progress_message(job),
        submit_time=job.submitted,
        start_time=started,
        end_time=job.end.at if job.end is not None else None,
        waiting_s=job.waiting_s(now),
        running_s=job.running_s(now),
        exit_code=job.exit_code if job.state.finished else None,
        checkpoint=_checkpoint_message(job),
        suspensions=[_suspension_message(job, suspension) for suspension in job.suspensions],
        attempts=[_attempt_message(attempt) for attempt in job.attempts],
        pid=live.pid if live is not None else 0,
        proved=job.suspending.proved,
        save_s=job.suspending.save_s,
        restart_cost_s=job.suspending.restart_cost_s,
        gpu_mem_bytes=job.gpu_memory.requested_bytes,
        gpu_mem_from=job.gpu_memory.changed_because,
        rates=_rate_messages(job),
        rungs=[client_pb2.RungResult(steps=steps, value=value) for steps, value in job.measured.rungs.items()],
        steps_per_s=speed_now(job),
        idle_since=live.idle.since if live is not None and live.idle is not None else None,
        idle_until=live.idle.suspend_at if live is not None and live.idle is not None else None,
        pool=job.pool,
        moves_to=job.next.pool,
        excluded_nodes={str(node): why for node, why in job.eligibility.excluded_because.items()},
        array=job.lineage.task.array if job.lineage.task is not None else "",
        index=job.lineage.task.index if job.lineage.task is not None else 0,
        params=job.lineage.task.params if job.lineage.task is not None else {},
        again_of=job.lineage.again_of or "",
        again_as=job.lineage.again_as or "",
        own_reason=has_own_reason(job),
    )


def listed_command(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``command`` as lists show it: a long one is cut to the limit, and ends with an ellipsis."""
    room = limits.LISTED_COMMAND_BYTES
    for number, argument in enumerate(command):
        room -= len(argument.encode()) + 1
        if room < 0:
            return (*command[:number], "…")
    return command


def reason_of(job: Job) -> str:
    """Return why ``job`` has its state: the gate that holds it back, or else its reason."""
    return held_back(job, _written) or job.reason


def _written(seconds: float) -> str:
    """Return a Unix time in local time, with the date if it is not today."""
    moment = time.localtime(seconds)
    today = moment[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", moment)


def submit_reply(id: JobId, job: Job | None) -> client_pb2.SubmitReply:
    """Return the reply to the submit of ``job``, whose id is ``id``; the job is None if it is already forgotten."""
    if job is None or not job.gpu_memory.changed_because:
        return client_pb2.SubmitReply(job_id=id)
    return client_pb2.SubmitReply(
        job_id=id, gpu_mem_bytes=job.gpu_memory.requested_bytes, gpu_mem_from=job.gpu_memory.changed_because
    )


def _rate_messages(job: Job) -> Iterator[client_pb2.Rate]:
    for at, rate in job.measured.rates.items():
        yield client_pb2.Rate(
            gpus=parts_to_share(at.share),
            nodes=at.nodes,
            alone=at.alone,
            steps_per_s=rate.steps_per_s,
            samples=rate.samples,
            model=at.model,
        )


def _progress_message(job: Job) -> job_pb2.Progress | None:
    if job.measured.progress is None:
        return None
    progress = job.measured.progress
    return job_pb2.Progress(
        step=progress.step,
        total=progress.total,
        loss=progress.loss,
        metrics=progress.metrics,
        diverged=progress.diverged,
    )


def _checkpoint_message(job: Job) -> job_pb2.Checkpoint | None:
    if (found := job.saved.checkpoint) is None:
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
        kept_step=suspension.kept_step,
        lost=suspension.lost,
        hint=suspension.hint,
    )


def _attempt_message(attempt: Attempt) -> client_pb2.AttemptSummary:
    end = attempt.end
    return client_pb2.AttemptSummary(
        attempt=attempt.number,
        placed_time=attempt.placed,
        start_time=attempt.first_started,
        warm=None if attempt.start is None else attempt.start.warm,
        earlier_cpu_s=None if attempt.start is None else attempt.start.earlier_cpu_s,
        end_time=end.at if end is not None else None,
        allocation=_allocation_messages(attempt.allocation),
        outcome=end.outcome if end is not None else "",
        resumed_step=attempt.resumed_step,
        sharing=attempt.sharing.way if attempt.sharing is not None else "",
        limited_by=attempt.sharing.limited_by if attempt.sharing is not None else "",
        pid=attempt.pid,
        edited=attempt.edited,
        gpu_mem_peak_bytes=end.exit.gpu_mem_peak_bytes if end is not None and end.exit is not None else None,
    )


def _allocation_messages(allocation: Allocation | None) -> list[client_pb2.NodeAllocation]:
    if allocation is None:
        return []
    return [client_pb2.NodeAllocation(node=piece.node, gpus=slices_to_messages(piece.gpus)) for piece in allocation]


def event_message(stored: StoredEvent) -> client_pb2.Event:
    """Return the message for one line of the journal, with its words and its JSON."""
    event = stored.event
    if isinstance(event, JobSubmitted) and event.spec.notify:
        event = replace(event, spec=replace(event.spec, notify=public(event.spec.notify)))
    if isinstance(event, JobSubmitted) and event.spec.env:  # from versions without a vault, or an array's params
        event = replace(event, spec=replace(event.spec, env={}))
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
    certificate_ends: float | None = None,
) -> client_pb2.Node:
    """Return the message for one node, its GPUs, and the jobs on them; ``hello`` is None if it is not connected."""
    facts = node.facts
    infos = {GpuId(info.uuid): info for info in hello.gpus} if hello is not None else {}
    state, reason = node_state(node, now)
    by_index, on_gpus = sorted(node.gpus, key=lambda gpu: node.gpus[gpu].index), jobs_by_gpu(cluster.state, node)
    return client_pb2.Node(
        name=node.id,
        hostname=facts.hostname,
        state=state,
        reason=reason,
        gpus=[
            _node_gpu(node, gpu, cluster, readings.get(gpu), infos.get(gpu), on_gpus.get(gpu, ())) for gpu in by_index
        ],
        cpus=facts.cpus,
        cpus_allocated=node.held.cpus,
        mem_bytes=facts.mem_bytes,
        mem_allocated_bytes=node.held.mem_bytes,
        gpu_backend=facts.gpu_backend,
        checkpoint_root_id=facts.checkpoint_root_id,
        last_seen=now if node.connected else node.last_seen,
        version=facts.version,
        cgroup=hello.cgroup if hello is not None else None,
        cpu_limits=hello.cpu_limits if hello is not None else "",
        mem_limits=hello.mem_limits if hello is not None else "",
        pool=facts.pool,
        moves_to=hello.pool if hello is not None and hello.pool != facts.pool else "",
        labels=facts.labels,
        taints=facts.taints,
        drain=_drain_message(node.drain),
        certificate_ends=certificate_ends,
        dead=node.dead,
        strays=[_stray_message(ref, stray) for ref, stray in node.strays.items()],
        loan=None if node.loan is None else agent_pb2.Loan(until=node.loan.until, owner=node.loan.owner),
    )


def _stray_message(ref: AttemptRef, stray: Stray) -> client_pb2.Stray:
    return client_pb2.Stray(
        job_id=ref.job,
        attempt=ref.attempt,
        kind=stray.kind.value,
        gpus=stray.gpus,
        orphan=stray.orphan,
        ending=stray.is_to_end,
    )


def node_state(node: Node, now: float) -> tuple[str, str]:
    """Return the state of ``node``, and why it is in it."""
    if node.has_ended(now):
        return "ended", "it is gone, as was announced"
    if node.dead:
        return "down", f"confirmed dead by {node.dead}"
    if not node.connected:
        return "down", f"silent for {max(0.0, now - node.last_seen):.0f} s"
    return state_of_node(node, now), node.drain.reason if node.drain is not None else ""


def _drain_message(drain: Drain | None) -> client_pb2.NodeDrain | None:
    if drain is None:
        return None
    return client_pb2.NodeDrain(
        since=drain.since, user=drain.user, reason=drain.reason, deadline=drain.deadline, force=drain.force
    )


def node_job_message(found: DrainForecast) -> client_pb2.NodeJob:
    """Return the message for what becomes of a job on a node that is drained."""
    job = found.job
    return client_pb2.NodeJob(
        job_id=job.id,
        name=job.spec.name,
        user=job.user,
        state=STATES[job.state],
        fate=found.outcome.name.lower(),
        text=found.outcome.value,
        at=found.at,
    )


def pool_messages(state: ClusterState) -> Iterator[client_pb2.Pool]:
    """Return messages for all pools; those that are not configured any more come last."""
    defaults = state.settings
    for name, pool in state.pools.items():
        found = client_pb2.Pool(name=name, for_gpus=name == defaults.gpu_pool, for_cpus=name == defaults.cpu_pool)
        if (settings := pool.settings) is not None:
            found.policy, found.fitting = settings.policy, settings.fitting.value
            found.options.update(settings.options)
        yield found


def jobs_by_gpu(state: ClusterState, node: Node) -> dict[GpuId, list[JobId]]:
    """Return the jobs on each GPU of ``node``."""
    found: dict[GpuId, list[JobId]] = {}
    for job in state.jobs_on_gpus(node):
        if not job.off_gpu:
            for gpu in job.attempts[-1].allocation.gpu_ids:
                found.setdefault(gpu, []).append(job.id)
    return found


def _node_gpu(
    node: Node,
    gpu: GpuId,
    cluster: Cluster,
    reading: agent_pb2.GpuReading | None,
    described: agent_pb2.GpuInfo | None,
    jobs: Iterable[JobId],
) -> client_pb2.NodeGpu:
    facts = node.gpus[gpu]
    place = described or agent_pb2.GpuInfo()  # has the place on the bus, which the core does not need
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
    share = parts_to_share(node.held.share(gpu))
    others = [
        agent_pb2.GpuProcess(pid=found.pid, mem_bytes=found.mem_bytes, user=found.user, command=found.command)
        for found in on_gpu(node, gpu)
    ]
    booking = cluster.state.bookings.next_on(node.id, gpu) if cluster.state.bookings else None
    reserved = reserved_for(booking) if booking is not None else ""
    return client_pb2.NodeGpu(
        info=info,
        reading=reading,
        share_allocated=share,
        job_ids=jobs,
        foreign=others,
        reserved=reserved,
        state=GPU_STATE_NUMBERS[state_of_gpu(node, gpu)],
    )
