"""Decides which pool a job or a node belongs to, and moves it to another one.

A job changes its pool while it has no attempt: a running job steps aside first, and stays in its pool until what it
held there is proven free. A node changes its pool while nothing runs on it, and no job is promised room on it. Jobs and
nodes of a pool that is no longer configured stay in it: waiting jobs wait until they are moved, or the pool is back;
running jobs go on.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events.words import by
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle.refusing import of_unfinished
from ebbtide_core.model.refusals import Refusal, RefusalKind
from ebbtide_core.model.settings import Settings
from ebbtide_core.model.spec.resources import ResourceSpec
from ebbtide_core.model.spelling import choices
from ebbtide_core.model.types import StopCause, SuspendMode
from ebbtide_core.reconcile import stop
from ebbtide_core.resources.checkpoint_location import nodes_with_checkpoint, sees_checkpoint
from ebbtide_core.resources.infeasible import infeasible_refusal
from ebbtide_core.resources.pools import PoolState
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState

GONE: Final = "pool {} is not configured any more: 'ebb set {} --pool NAME' moves it to another"


def pool_of(asked: ResourceSpec, settings: Settings) -> str:
    """Return the pool that a job goes to: the one that it asks for, or the one for jobs with GPUs, or without."""
    return asked.pool or (settings.gpu_pool if asked.gpus_max else settings.cpu_pool)


# --- jobs ---


def refuse_unknown(name: str, pools: Mapping[str, object]) -> Refusal | None:
    """Return a refusal if the pool ``name`` is not configured, else None; an empty name is allowed."""
    if not name or name in pools:
        return None
    return Refusal(RefusalKind.INVALID, f"--pool: there is no pool {name!r}: there are {choices(name, pools)}")


def _refuse_move(state: ClusterState, job: Job, event: e.JobMoved) -> Refusal | None:
    name = event.pool
    if not name:
        return Refusal(RefusalKind.INVALID, f"--pool: is empty: there are {', '.join(state.settings.pools)}")
    if (refusal := refuse_unknown(name, state.settings.pools)) is not None:
        return refusal
    if name == job.pool:
        return infeasible_refusal(state.pools[name], job.spec, job.gpus_min)
    stays = f"job {job.id} was submitted with --suspend {job.spec.suspend.value}: "
    if job.live is not None and not job.preemptible:
        message = f"{stays}it never steps aside, and stays in pool {job.pool} until it ends"
        return Refusal(RefusalKind.CONFLICT, message)
    if job.live is not None and job.spec.suspend is SuspendMode.SWAP:
        message = f"{stays}what it has in memory cannot go to a node of pool {name}"
        return Refusal(RefusalKind.CONFLICT, message)
    far = _refuse_far_from_checkpoint(state, job, name)
    return far or infeasible_refusal(state.pools[name], job.spec, job.gpus_min)


def _refuse_far_from_checkpoint(state: ClusterState, job: Job, name: str) -> Refusal | None:
    """Refuse a job that could never go on there: no node of the pool reads its checkpoints, and they are not copied."""
    nodes = state.pools[name].books.nodes.values()
    if not nodes or job.spec.move_checkpoints or any(sees_checkpoint(job, node) for node in nodes):
        return None
    where = ", ".join(node.id for node in nodes_with_checkpoint(job, state.nodes))
    message = (
        f"job {job.id} has its checkpoint on node {where}, which no node of pool {name} can read:"
        " only a job submitted with --move-checkpoints could go there"
    )
    return Refusal(RefusalKind.CONFLICT, message)


def _is_move(state: ClusterState, event: e.JobMoved) -> bool:
    job = state.jobs.get(event.job)
    return job is not None and event.pool != (job.next.pool or job.pool)


def _moved(state: ClusterState, job: Job, event: e.JobMoved, now: float) -> None:
    """Send the job to another pool, where it goes as soon as it holds nothing."""
    state.pool(event.pool)
    if job.claiming:
        state.unplan(job)
    job.next = replace(job.next, pool="" if event.pool == job.pool else event.pool)
    if job.live is None and job.held_by is None:
        job.reason = f"moved to pool {event.pool}; waiting for its turn in the queue"


def _step_aside(state: ClusterState, event: e.JobMoved) -> Iterable[e.Event]:
    """Stop a job that runs, so that it can change its pool."""
    job = state.jobs[event.job]
    if job.running and job.next.pool:
        yield stop(job, StopCause.MOVED, f"stepping aside to go on in pool {event.pool}")


def stranded(pool: PoolState) -> Iterator[e.Event]:
    """Drop the claims in a pool that is no longer configured, and give its jobs the reason why they wait."""
    for job in list(pool.claims.values()):
        yield e.ClaimDropped(job.id, GONE.format(pool.name, job.id))
    for job in pool.queue:
        job.reason = GONE.format(pool.name, job.id)


# --- nodes ---


def refuse_node(state: ClusterState, event: e.NodeRegistered) -> str | None:
    """Return why a node is refused: it names a pool that is not configured, and was not in it before; else None."""
    pools, known = state.settings.pools, state.nodes.get(event.node)
    if event.pool in pools or (known is not None and known.facts.pool == event.pool):
        return None
    return f"--pool {event.pool}: the master has no such pool: there are {choices(event.pool, pools)}"


def registration(state: ClusterState, event: e.NodeRegistered) -> e.NodeRegistered:
    """Return ``event`` with the pool that the node stays in as long as something runs on it or is promised there."""
    known = state.nodes.get(event.node)
    if known is None or known.facts.pool == event.pool or not (known.attempts or known.planned or known.strays):
        return event
    return replace(event, pool=known.facts.pool)


def change_of_node(state: ClusterState, event: e.NodeRegistered) -> Iterable[e.NodeRegistered]:
    """Return the registration that moves the node of ``event`` to the pool that it named, or nothing if it cannot."""
    known = state.nodes[event.node]
    if known.facts.pool == event.pool or registration(state, event) is not event:
        return ()
    return (replace(event, gpus=tuple(known.gpus.values()), known=()),)


RULES: Final = (
    Rule(
        e.JobMoved,
        refuse=of_unfinished(_refuse_move),
        news=_is_move,
        apply=about_job(_moved),
        decide=_step_aside,
        say=lambda event: f"pool {event.old_pool} → {event.pool}{by(event.user)}",
    ),
)
