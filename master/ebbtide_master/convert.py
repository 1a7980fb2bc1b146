"""Converts between messages of the wire and values of the core; nothing is decided here."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from ipaddress import ip_address
from typing import Final

from ebbtide_core import commands as c
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.events.logs import LogMatch
from ebbtide_core.job.job import Job
from ebbtide_core.model import limits
from ebbtide_core.model.constraints import check_marks
from ebbtide_core.model.log_rules import MAX_LINE_LENGTH, MAX_PATTERN_LENGTH, LogAction
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import (
    AttemptRef,
    Checkpointed,
    CheckpointFacts,
    Clue,
    ExitFacts,
    ForeignProcess,
    GpuFacts,
    GpuId,
    GpuLink,
    GpuSlice,
    JobId,
    LinkKind,
    Loan,
    NodeId,
    ProgressFacts,
    RefusalCause,
    Sharing,
    StartFacts,
)
from ebbtide_core.nodes.strays import AttemptReport
from ebbtide_core.resources.node_usage import ForeignUse
from ebbtide_protos.spec import parts_to_share, spec_to_message
from ebbtide_protos.v1 import agent_pb2, job_pb2

_LOG_ACTIONS = {getattr(job_pb2, f"LOG_ACTION_{action.name}"): action for action in LogAction}
_CHECKPOINTED = {getattr(job_pb2, f"CHECKPOINTED_{each.name}"): each for each in Checkpointed}
_CLUES = {getattr(agent_pb2, f"CLUE_{each.name}"): each for each in Clue}
_REFUSALS = {
    number: RefusalCause[name.removeprefix("REFUSAL_CAUSE_").replace("UNSPECIFIED", "NODE")]
    for name, number in agent_pb2.RefusalCause.items()
}
_LINKS = {getattr(agent_pb2, f"GPU_LINK_{each.name}"): each for each in LinkKind}
_HOST: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*\.?")
MAX_SIGNAL: Final = 64
MAX_FACT_LENGTH: Final = limits.MAX_FACT_LENGTH
MAX_NOTE_LENGTH: Final = limits.MAX_NOTE_LENGTH
CHECKPOINTED_MESSAGES = {value: key for key, value in _CHECKPOINTED.items()}


def slices_to_messages(slices: tuple[GpuSlice, ...]) -> Iterator[job_pb2.GpuAllocation]:
    """Yield ``slices`` of GPUs as messages."""
    for piece in slices:
        yield job_pb2.GpuAllocation(uuid=piece.gpu, share=parts_to_share(piece.share), mem_bytes=piece.mem_bytes)


def order_to_message(order: c.NodeOrder, node: NodeId) -> agent_pb2.MasterMessage:
    """Return the message with which ``node`` gets ``order``."""
    match order:
        case c.Launch(allocation=allocation):
            rank = allocation.node_ids.index(node)
            launch = agent_pb2.Launch(
                job_id=order.job,
                attempt=order.attempt,
                spec=spec_to_message(order.spec),
                gpus=slices_to_messages(allocation.nodes[rank].gpus),
                needs_checkpoint=order.needs_checkpoint,
                node_rank=rank,
                num_nodes=len(allocation.nodes),
                world_size=len(allocation.gpu_ids),
                move_checkpoint=order.source is not None and rank == 0,
                first_rank=sum(len(piece.gpus) for piece in allocation.nodes[:rank]),
                master_addr=order.address,
                master_port=order.port,
                node_names=allocation.node_ids if order.spec.slurm and len(allocation.nodes) > 1 else (),
            )
            return agent_pb2.MasterMessage(launch=launch)
        case c.Stop():
            stop = agent_pb2.Stop(job_id=order.job, attempt=order.attempt, grace_s=order.grace_s, goes_on=order.goes_on)
            if order.swaps is not None:
                stop.swap, stop.swaps = True, order.swaps
            return agent_pb2.MasterMessage(stop=stop)
        case c.Resume():
            resume = agent_pb2.Resume(job_id=order.job, attempt=order.attempt, swaps=order.swaps)
            return agent_pb2.MasterMessage(resume=resume)
        case c.Forget():
            return agent_pb2.MasterMessage(forget=agent_pb2.Forget(job_id=order.job, attempt=order.attempt))
        case c.AnnounceEnd():
            return agent_pb2.MasterMessage(node_ends=agent_pb2.NodeEnds(until=order.until))


def registration_from_hello(hello: agent_pb2.Hello) -> e.NodeRegistered:
    """Return the registration of a node from its hello. Raises `SpecError` for facts that no node can have."""
    if not hello.node or len(hello.node) > limits.MAX_NODE_NAME_LENGTH or not hello.node.isprintable():
        raise SpecError("node", f"its name must be 1 to {limits.MAX_NODE_NAME_LENGTH} printable characters")
    uuids = {gpu.uuid for gpu in hello.gpus if 0 < len(gpu.uuid) <= MAX_FACT_LENGTH and gpu.uuid.isprintable()}
    if len(hello.gpus) > limits.MAX_GPUS_PER_NODE or len(uuids) != len(hello.gpus):
        raise SpecError("gpus", f"a node has at most {limits.MAX_GPUS_PER_NODE} GPUs, each with a UUID of its own")
    if not 0 < hello.cpus <= limits.MAX_CPUS or hello.mem_bytes > limits.MAX_MEM_BYTES:
        raise SpecError("cpus", f"{hello.cpus} CPUs and {hello.mem_bytes} bytes of memory cannot be")
    if any(gpu.mem_bytes > limits.MAX_MEM_BYTES for gpu in hello.gpus):
        raise SpecError("gpus", f"a GPU has at most {limits.MAX_MEM_BYTES} bytes of memory")
    if any(len(gpu.peers) >= limits.MAX_GPUS_PER_NODE or len(gpu.parent) > MAX_FACT_LENGTH for gpu in hello.gpus):
        raise SpecError("gpus", f"a GPU has fewer than {limits.MAX_GPUS_PER_NODE} others beside it")
    for field in ("hostname", "boot_id", "version", "address", "checkpoint_root_id", "gpu_backend"):
        if len(getattr(hello, field)) > MAX_FACT_LENGTH:
            raise SpecError(field, f"is over the limit of {MAX_FACT_LENGTH} characters")
    if hello.address and not is_host(hello.address):
        raise SpecError("address", f"{hello.address[:64]!r} is neither an address nor the name of a host")
    check_marks(hello.labels, tuple(hello.taints))
    return e.NodeRegistered(
        node=NodeId(hello.node),
        hostname=hello.hostname,
        boot_id=hello.boot_id,
        gpus=tuple(gpu_from_message(gpu) for gpu in hello.gpus),
        cpus=hello.cpus,
        mem_bytes=hello.mem_bytes,
        checkpoint_root_id=hello.checkpoint_root_id,
        gpu_backend=hello.gpu_backend,
        version=hello.version,
        address=hello.address,
        known=tuple(AttemptRef(JobId(status.job_id), status.attempt) for status in hello.attempts),
        share_with_foreign=hello.share_with_foreign,
        pool=hello.pool or DEFAULT_POOL,
        labels=dict(hello.labels),
        taints=tuple(hello.taints),
        loan=loan_of(hello),
    )


def loan_of(message: agent_pb2.Hello | agent_pb2.Heartbeat) -> Loan | None:
    """Return when the agent says that its node ends; None if it stays. Raises `SpecError` if that cannot be."""
    if not message.HasField("loan"):
        return None
    until, owner = message.loan.until, message.loan.owner
    if not 0 < until <= limits.MAX_BEGIN:
        raise SpecError("until", f"{until} is no time in Unix seconds")
    if len(owner) > limits.MAX_USER_LENGTH or not owner.isprintable():
        raise SpecError("owner", f"is not a name of at most {limits.MAX_USER_LENGTH} printable characters")
    return Loan(until, owner)


def is_host(text: str) -> bool:
    """Whether ``text`` is an IP address or a host name, so that no program could take it for anything else."""
    if _HOST.fullmatch(text):
        return True
    try:
        return bool(ip_address(text)) and "%" not in text
    except ValueError:
        return False


def gpu_from_message(message: agent_pb2.GpuInfo) -> GpuFacts:
    """Return the facts of a GPU."""
    return GpuFacts(
        gpu=GpuId(message.uuid),
        index=message.index,
        model=message.model,
        mem_bytes=message.mem_bytes,
        healthy=message.healthy,
        unhealthy_reason=message.unhealthy_reason,
        numa_node=message.numa_node if message.HasField("numa_node") else None,
        parent=GpuId(message.parent) if message.parent else None,
        links=tuple(GpuLink(GpuId(peer.uuid), _LINKS[peer.link]) for peer in message.peers if peer.link in _LINKS),
        mps=message.mps,
        compute_capability=message.compute_capability[:MAX_FACT_LENGTH],
    )


def foreign_from_messages(messages: Iterable[agent_pb2.GpuProcess]) -> tuple[ForeignProcess, ...]:
    """Return a GPU's processes that belong to no job, by pid; the last one stands for all that are over the limit."""
    found = sorted((message for message in messages if not message.job_id), key=lambda message: message.pid)
    processes = [
        ForeignProcess(
            pid=message.pid,
            user=_word(message.user),
            command=_word(message.command),
            mem_bytes=min(message.mem_bytes, limits.MAX_MEM_BYTES) if message.HasField("mem_bytes") else None,
        )
        for message in found
    ]
    named, rest = processes[: limits.MAX_FOREIGN_PROCESSES], processes[limits.MAX_FOREIGN_PROCESSES - 1 :]
    if len(rest) > 1:
        named[-1] = replace(rest[0], mem_bytes=ForeignUse(tuple(rest), None).mem_bytes)
    return tuple(named)


def _word(text: str) -> str:
    """Cut ``text`` to the limit, and to characters that can be shown in one line."""
    return "".join(letter for letter in text[: limits.MAX_FOREIGN_TEXT] if letter.isprintable())


def facts_of_status(status: agent_pb2.AttemptStatus, node: NodeId, cluster: Cluster) -> Iterator[Event]:
    """Yield the facts that an attempt's status implies, oldest first. The core drops those that it knows already.

    A node can report its own attempts only. Of an attempt on several nodes, the first node reports the job's progress.
    """
    job, attempt = JobId(status.job_id), status.attempt
    known = cluster.job(job)
    if known is None or not 0 < attempt <= len(known.attempts):
        return
    nodes = known.attempts[attempt - 1].allocation.node_ids
    if node not in nodes:
        return
    part, leads = node if len(nodes) > 1 else e.EVERY_NODE, node == nodes[0]
    if status.phase == agent_pb2.ATTEMPT_PHASE_REFUSED:
        asked = known.attempts[attempt - 1].stop is not None
        cause = RefusalCause.STOPPED if asked else _REFUSALS.get(status.refusal_cause, RefusalCause.NODE)
        yield e.AttemptRefused(job, attempt, cause, status.refusal[:MAX_NOTE_LENGTH], part)
        return
    yield from _matches(status, node)
    is_swapped = status.phase == agent_pb2.ATTEMPT_PHASE_SWAPPED
    if status.started_at:
        resumed = status.resumed_step if status.HasField("resumed_step") else None
        swaps = max(0, status.swaps - is_swapped)
        sharing = Sharing(status.sharing[:MAX_FACT_LENGTH], status.limited_by[:MAX_FACT_LENGTH])
        pid, port, shared = status.pid, status.master_port, sharing if status.sharing else None
        edited = tuple(name[:MAX_FACT_LENGTH] for name in status.edited[: limits.MAX_SCRIPTS])
        yield e.AttemptStarted(job, attempt, pid, resumed, swaps, part, port, shared, edited, status.leased)
    if status.start.stepped_at and leads:
        yield e.FirstStepMade(job, attempt, start_from_message(status))
    progress = progress_from_message(status.progress) if status.HasField("progress") and leads else None
    if status.HasField("checkpoint") and leads:
        yield e.CheckpointPublished(job, attempt, checkpoint_from_message(status.checkpoint))
    if status.phase in (agent_pb2.ATTEMPT_PHASE_EXITED, agent_pb2.ATTEMPT_PHASE_FREED):
        yield e.AttemptExited(job, attempt, exit_from_message(status), progress, node=part)
    elif progress is not None:
        yield e.ProgressReported(job, attempt, progress)
    if status.phase == agent_pb2.ATTEMPT_PHASE_RUNNING:
        yield from _facts_of_use(status, known)
    if is_swapped:
        mem_bytes, note = _bytes(status.swapped_bytes), status.swap_note[:MAX_NOTE_LENGTH]
        yield e.AttemptSwapped(job, attempt, status.swaps, mem_bytes, _seconds(status.swap_s), note)
    if status.phase == agent_pb2.ATTEMPT_PHASE_FREED:
        reasons = tuple(reason[:MAX_NOTE_LENGTH] for reason in status.dirty_reasons)
        yield e.AttemptFreed(job, attempt, tuple(GpuId(uuid) for uuid in status.dirty_gpus), part, reasons)


def report_of(status: agent_pb2.AttemptStatus, node: NodeId) -> AttemptReport:
    """Return what a status says of an attempt that the core may not know."""
    return AttemptReport(
        node=node,
        job=JobId(status.job_id[:MAX_FACT_LENGTH]),
        attempt=status.attempt,
        gpus=tuple(GpuId(uuid[:MAX_FACT_LENGTH]) for uuid in status.gpus[: limits.MAX_GPUS_PER_NODE]),
        over=status.phase in (agent_pb2.ATTEMPT_PHASE_FREED, agent_pb2.ATTEMPT_PHASE_REFUSED),
        orphan=status.orphan,
        dirty_gpus=tuple(GpuId(uuid[:MAX_FACT_LENGTH]) for uuid in status.dirty_gpus),
        dirty_reasons=tuple(reason[:MAX_NOTE_LENGTH] for reason in status.dirty_reasons),
    )


def _matches(status: agent_pb2.AttemptStatus, node: NodeId) -> Iterator[Event]:
    found = (_match_from_message(message) for message in status.log_matches)
    return (e.LogMatched(JobId(status.job_id), status.attempt, node, match) for match in found if match is not None)


def _match_from_message(message: job_pb2.LogMatch) -> LogMatch | None:
    """Return a matched line of a log, cut to the limits, or None if its action is unknown."""
    action = _LOG_ACTIONS.get(message.action)
    if action is None:
        return None
    line = "".join(letter if letter.isprintable() else " " for letter in message.line[:MAX_LINE_LENGTH])
    gpus = tuple([gpu[:MAX_FACT_LENGTH] for gpu in message.gpus])
    return LogMatch(message.pattern[:MAX_PATTERN_LENGTH], action, line.strip(), gpus)


def _facts_of_use(status: agent_pb2.AttemptStatus, job: Job) -> Iterator[Event]:
    """Yield that an attempt uses too much GPU memory, or that its session is unused."""
    if status.overran_gpu:
        yield overrun_from_message(status)
    if job.spec.idle_limit_s is not None:
        since, left_s = _seconds(status.unused_since), _seconds(status.unused_left_s)
        yield e.SessionUnused(job.id, status.attempt, since, left_s)


def exit_from_message(status: agent_pb2.AttemptStatus) -> ExitFacts:
    """Return how the attempt ended, as its supervisor saw it; lost if there is no record, or an impossible one."""
    record = status.exit
    possible = status.HasField("exit") and record.signal <= MAX_SIGNAL
    return ExitFacts(
        exit_code=record.exit_code,
        signal=record.signal if possible else 0,
        lost=status.lost or not possible,
        stop_requested=record.stop_requested,
        delivered=record.delivered,
        caught=record.caught,
        acknowledged=record.acknowledged,
        asked=record.asked,
        killed=record.killed,
        checkpointed=_CHECKPOINTED.get(record.checkpointed, Checkpointed.UNKNOWN),
        checkpoint_s=_seconds(record.checkpoint_s),
        ended_at=_seconds(record.ended_at),
        swap_failure=record.swap_failure[:MAX_NOTE_LENGTH],
        mps_failure=record.mps_failure[:MAX_NOTE_LENGTH],
        gpu_mem_peak_bytes=_bytes(status.gpu_mem_peak_bytes) if status.HasField("gpu_mem_peak_bytes") else None,
        out_of_memory=record.out_of_memory,
        lost_gpu=record.lost_gpu[:MAX_FACT_LENGTH],
        fenced=record.fenced,
        memory_failure=record.memory_failure[:MAX_NOTE_LENGTH],
        input_failure=record.input_failure[:MAX_NOTE_LENGTH],
        clues=tuple([_CLUES[clue] for clue in dict.fromkeys(record.clues) if clue in _CLUES]),
    )


def overrun_from_message(status: agent_pb2.AttemptStatus) -> e.MemoryOverran:
    """Return the event that an attempt uses more memory of a GPU than it was given."""
    gpu, used, allowed = GpuId(status.overran_gpu[:MAX_FACT_LENGTH]), status.overran_bytes, status.allowed_bytes
    return e.MemoryOverran(JobId(status.job_id), status.attempt, gpu, _bytes(used), _bytes(allowed))


def start_from_message(status: agent_pb2.AttemptStatus) -> StartFacts:
    """Return how an attempt came to its first step. Its times are of one clock, which may have been set meanwhile."""
    start = status.start
    loaded_at = start.loaded_at or start.job_at
    load_s = _seconds(max(0.0, loaded_at - start.job_at)) if start.loaded_at else None
    import_s, step_s = max(0.0, start.job_at - status.started_at), max(0.0, start.stepped_at - loaded_at)
    earlier_cpu_s = _seconds(start.earlier_cpu_s)
    return StartFacts(start.warm, _seconds(import_s), load_s, _seconds(step_s), start.first_step, earlier_cpu_s)


def progress_from_message(message: job_pb2.Progress) -> ProgressFacts:
    """Return a job's progress, without metrics that are not finite."""
    total = message.total if message.HasField("total") else None
    loss = message.loss if message.HasField("loss") else None
    known = list(message.metrics.items())[: limits.MAX_METRICS]
    metrics = {name[: limits.MAX_METRIC_NAME]: value for name, value in known if abs(value) < float("inf")}
    diverged = tuple(name[: limits.MAX_METRIC_NAME] for name in message.diverged[: limits.MAX_METRICS])
    loss = loss if loss is None or abs(loss) < float("inf") else None
    return ProgressFacts(message.step, total, loss, metrics, diverged)


def checkpoint_from_message(message: job_pb2.Checkpoint) -> CheckpointFacts:
    """Return a published checkpoint."""
    step = message.step if message.HasField("step") else None
    return CheckpointFacts(step, message.bytes, message.path, message.verified)


def _bytes(value: int) -> int:
    return min(value, limits.MAX_MEM_BYTES)


def _seconds(value: float) -> float:
    """Return a time or duration in seconds; 0 (unknown) for negative or infinite values, as JSON cannot carry those."""
    return value if 0.0 <= value < float("inf") else 0.0
