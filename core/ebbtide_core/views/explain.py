"""Explains to users why a job waits and when it may start; no decision depends on it."""

from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from ebbtide_core.estimates.work import EstimateSource, expected_end, remaining
from ebbtide_core.job.job import Job
from ebbtide_core.model.constraints import NO_NEEDS, as_options
from ebbtide_core.model.types import JobId, NodeAllocation, NodeId
from ebbtide_core.planning.draft import count_text, need_text
from ebbtide_core.planning.policy import Policy
from ebbtide_core.planning.staying import Stay
from ebbtide_core.resources.anti_affinity import kept_from
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.checkpoint_location import reads_checkpoint
from ebbtide_core.resources.eligibility import why_not_here
from ebbtide_core.resources.expected_releases import ExpectedRelease, first_room
from ebbtide_core.resources.foreign_processes import in_the_way
from ebbtide_core.resources.placing import Trial
from ebbtide_core.resources.pools import PoolState
from ebbtide_core.state import ClusterState

MOST_STAYS: Final = 8
"""Rules by which other jobs are not preempted that an explanation lists, and jobs that it names for each rule."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """What one node could give the job: how many of its ``gpus`` are ``idle``, and why they are not enough."""

    node: NodeId
    idle: int
    gpus: int
    obstacle: str


@dataclass(slots=True)
class Stays:
    """Jobs that are not preempted for the same reason ``why``: the first of them, and how ``many`` there are in all."""

    why: Stay
    jobs: list[JobId] = field(default_factory=list)
    many: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer of `explain`: times in Unix seconds, None if not known; ``ahead`` is None unless the job waits."""

    job: JobId
    needs: str
    ahead: int | None
    nodes: tuple[NodeView, ...]
    room_at: float | None
    basis: str
    remaining_s: float | None
    remaining_from: EstimateSource | None
    stays: tuple[Stays, ...]


def explain(state: ClusterState, job: Job, now: float, policy: Policy | None = None) -> Explanation:
    """Explain what ``job`` needs, how many jobs are ahead of it, what each node could give, and when there is room.

    The time assumes that the running jobs end as expected, that no job is preempted, and that no waiting job takes the
    room first. With ``policy``, the policy of its pool, it also says which jobs are not preempted for ``job``.
    """
    pool = state.pools[job.pool]
    ahead = sum(1 for _ in takewhile(lambda other: other is not job, pool.queue)) if job.queued else None
    if state.displaced.get(job.id) or job.id in state.blocked_by_bookings:
        ahead = 0  # the job is in no queue, and starts wherever there is room
    room_at, basis = _room_at(pool, job, now) if ahead is not None else (None, "")
    if (
        backs_off := ahead is None
        and job.waiting
        and job.held_by is None
        and (vain := job.retries.vain_in_row) > 0 < job.next.not_before - now
    ):
        room_at, basis = job.next.not_before, f"it is launched again then: {vain} launches in a row failed"
    left = remaining(job, now, pool.history, pool.speedup)
    return Explanation(
        job=job.id,
        needs=_needs(job) + pool.where,
        ahead=ahead,
        nodes=tuple(_view(pool, job, id, now) for id in pool.books.nodes) if ahead is not None or backs_off else (),
        room_at=room_at,
        basis=basis,
        remaining_s=left.work_s if left else None,
        remaining_from=left.source if left else None,
        stays=_stays(pool, policy, job, now) if policy and ahead is not None else (),
    )


def _stays(pool: PoolState, policy: Policy, job: Job, now: float) -> tuple[Stays, ...]:
    """Return the jobs not preempted on nodes where ``job`` could run, by rule; rules that end soonest come first."""
    if Trial(pool.books).find(job, job.gpus_min) is not None:
        return ()  # there is room, so no job is in the way
    fit = {id for id, node in pool.books.nodes.items() if node.reachable and not why_not_here(job, pool.books, node)}
    found: dict[Stay, Stays] = {}
    for other in pool.planned.values():
        if other is job or other.planned is None or fit.isdisjoint(other.planned.node_ids):
            continue
        if (why := policy.stays(other, job, now)) is not None:
            stays = found.setdefault(why, Stays(why))
            stays.many += 1
            if len(stays.jobs) < MOST_STAYS:
                stays.jobs.append(other.id)
    ordered = sorted(found.values(), key=lambda stays: (stays.why.until is None, stays.why.until or 0.0))
    return tuple(ordered[:MOST_STAYS])


def _needs(job: Job) -> str:
    spec = job.spec
    if (own := job.pinned_allocation) is not None:
        return f"GPU {own.gpu_ids[0]} of node {own.node_ids[0]}: its memory is in host memory there"
    parts = [need_text(job, job.gpus_min)]
    if job.elastic:
        parts[0] += f" to {count_text(job.gpus_max)}"
    if job.gpu_memory.requested_bytes:
        parts.append(f"{job.gpu_memory.requested_bytes / 2**30:g} GiB of GPU memory")
    if spec.needs is not NO_NEEDS:
        parts += as_options(spec.needs)
    if spec.cpus:
        parts.append(f"{spec.cpus:g} CPUs")
    if spec.mem_bytes:
        parts.append(f"{spec.mem_bytes / 2**30:g} GiB of memory")
    return ", ".join(parts)


def _view(pool: PoolState, job: Job, id: NodeId, now: float) -> NodeView:
    node = pool.books.nodes[id]
    use, spec, mem_bytes = node.promised, job.spec, job.gpu_memory.requested_bytes
    if (own := job.pinned_allocation) is not None:
        return NodeView(id, max(0, node.idle(use)), len(node.gpus), _why_not_back(pool, job, node, own.nodes[0], now))
    small = job.gpus_min > 0 and not any(gpu.mem_bytes >= mem_bytes for gpu in node.gpus.values())
    obstacles = [
        ("not connected", not node.reachable),
        (drained := _why_drained(node), bool(drained)),
        (unfit := why_not_here(job, pool.books, node), bool(unfit)),
        ("cannot read its checkpoint", not reads_checkpoint(job, node, pool.books)),
        ("too few CPUs left", use.cpus + spec.cpus > node.facts.cpus),
        ("too little memory left", use.mem_bytes + spec.mem_bytes > node.facts.mem_bytes),
        ("GPUs too small" if node.gpus else "no GPUs", small),
    ]
    found = [text for text, stands in obstacles if stands]
    if not found and not Trial(pool.books).has_room(job, node):
        others = kept_from(job, pool.books, node)
        found = [f"kept apart from {others}" if others else "too few GPUs left"]
        found += in_the_way(node) if job.gpus_min else ()
        if pool.books.booked is not None and job.gpus_min and (booked := pool.books.booked.obstacle(job, id)):
            found.append(booked)
    return NodeView(id, max(0, node.idle(use)), len(node.gpus), "; ".join(found))


def _why_not_back(pool: PoolState, job: Job, node: Node, own: NodeAllocation, now: float) -> str:
    """Return why a swapped-out job, which keeps all but ``own``, cannot go on on ``node``, in words."""
    [gpu] = own.gpus
    if node.id != own.node:
        return f"it can go on only on GPU {gpu.gpu} of node {own.node}"
    if not node.reachable:
        return "not connected"
    found = [] if node.takes_back(now) else [_why_drained(node)]
    if not node.offers(gpu):
        found += in_the_way(node)
    elif not (node.fits(own, node.held) and node.fits(own, node.promised)):
        found.append(f"GPU {gpu.gpu} is taken")
    elif pool.books.anti_affinity is not None and gpu.gpu in pool.books.anti_affinity.gpus(job.id, node):
        found.append(f"kept apart from {kept_from(job, pool.books, node)}")
    elif pool.books.booked is not None and gpu.gpu in pool.books.booked.barred(job).get(node.id, ()):
        found.append(pool.books.booked.obstacle(job, node.id))
    return "; ".join(found)


def _why_drained(node: Node) -> str:
    if node.drain is None:
        return ""
    return f"being drained: {node.drain.reason}" if node.drain.reason else "being drained"


def _expected(pool: PoolState, job: Job) -> ExpectedRelease | None:
    """Return when ``job`` is expected to end; if that is not known, when its reservation ends; else None."""
    end = expected_end(job, pool.history, pool.speedup)
    live = job.live
    if end is None and live is not None and live.started is not None and live.reserved_s is not None:
        end = live.started + max(0.0, live.reserved_s - job.times.ran_s)
    return None if end is None else ExpectedRelease(end, job.sequence, False, False, job)


def _room_at(pool: PoolState, job: Job, now: float) -> tuple[float | None, str]:
    """Return the Unix time at which there is room, None if not known, and how that is known."""
    if (own := job.pinned_allocation) is not None:
        node = pool.books.nodes[own.node_ids[0]]
        if node.drain is not None and node.takes_back(now):
            return _back_at(pool, job, node, own.nodes[0], now)
    trial = Trial(pool.books)
    if trial.find(job, job.gpus_min) is not None:
        return now, "there is room now: it waits for the jobs ahead of it"
    expected = [_expected(pool, other) for other in pool.planned.values()]
    known = sorted(leave for leave in expected if leave is not None)
    gives = ((leave, leave.job.planned) for leave in known if leave.job.planned is not None)
    if (found := first_room(trial, job, gives)) is not None:
        last, _ = found
        return max(now, last.time), f"once job {last.job.id} and the jobs that end before it have ended"
    unknown = len(expected) - len(known)
    if unknown:
        return None, f"not known: no estimate says when {unknown} of the {len(expected)} jobs that run will end"
    return None, "not known: the nodes that are connected have no room for it even when nothing runs"


def _back_at(pool: PoolState, job: Job, node: Node, own: NodeAllocation, now: float) -> tuple[float | None, str]:
    """Return what `_room_at` does for a swapped-out job on a drained node, which no trial counts."""
    why = _why_not_back(pool, job, node, own, now)
    if not why:
        return now, "its GPU is free now"
    [gpu] = own.gpus
    there = [other for other in pool.planned.values() if other.planned and gpu.gpu in other.planned.gpu_ids]
    expected = [leave for other in there if (leave := _expected(pool, other)) is not None]
    if node.offers(gpu) and there and len(expected) == len(there):
        last, deadline = max(expected), node.drain.deadline if node.drain is not None else None
        if deadline is None or last.time < deadline:
            return max(now, last.time), f"once job {last.job.id} has ended"
        why = f"job {last.job.id} is expected to end only after the drain's deadline"
    return None, f"not known: {why}"
