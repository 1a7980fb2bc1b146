"""Refuses a job that the cluster cannot take, and adds others to the state; `model.spec.validate` comes before."""

from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.job.facets import CONSTRAINED, GpuMemory
from ebbtide_core.job.job import ITS_TURN, Job
from ebbtide_core.lifecycle import halving_tasks, pool_membership
from ebbtide_core.model import limits
from ebbtide_core.model.constraints import NO_NEEDS
from ebbtide_core.model.refusals import Refusal, RefusalKind
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.spec.resources import ResourceSpec
from ebbtide_core.model.types import HeldBy, gpus
from ebbtide_core.planning.draft import count_range
from ebbtide_core.resources.infeasible import infeasible_refusal
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState


def _refuse(state: ClusterState, event: e.JobSubmitted) -> Refusal | None:
    if event.task is not None and event.task.array in state.gates.arrays:
        return None  # the check of the first task was for all tasks: they are accepted together
    refusal = _over_limits(state, event)
    if refusal is not None:
        return refusal
    pool = event.spec.pool or DEFAULT_POOL
    unknown = pool_membership.refuse_unknown(pool, state.settings.pools)
    return unknown or infeasible_refusal(state.pools[pool], event.spec)


def _over_limits(state: ClusterState, event: e.JobSubmitted) -> Refusal | None:
    """Return why the job, or the array that it is the first task of, is too much or does not fit; else None."""
    gates, spec, task = state.gates, event.spec, event.task
    count = 1 if task is None else task.size
    if len(state.unfinished) + count > limits.MAX_UNFINISHED_JOBS:
        message = f"the limit of {limits.MAX_UNFINISHED_JOBS} unfinished jobs is reached"
        return Refusal(RefusalKind.LIMIT, message)
    if spec.asha is not None and task is None and event.again_of is None:
        return _invalid("--asha: compares the tasks of an array: submit one with --array or --param")
    for dependency in spec.after:
        if dependency.job not in state.jobs and dependency.job not in gates.arrays:
            return _invalid(f"--after: job {dependency.job[:40]} does not exist")
    if task is not None and task.max_slots and spec.gpus_min > task.max_slots:
        return _invalid(f"--max-slots: {gpus(task.max_slots)} are less than the {gpus(spec.gpus_min)} of one task")
    return _over_quota(state, event.user, spec, count) if gates.limit_users else None


def _over_quota(state: ClusterState, user: str, asked: ResourceSpec, count: int) -> Refusal | None:
    quota = state.gates.quotas.of(user)
    if quota.gpus is not None and asked.gpus_min > quota.gpus:
        most = gpus(quota.gpus)
        return _invalid(f"--gpus: {gpus(asked.gpus_min)} is more than the {most} of the quota of {user}")
    user_quota = state.gates.user_quotas.get(user)
    unfinished = 0 if user_quota is None else user_quota.unfinished
    if quota.queued is not None and unfinished + count > quota.queued:
        more = "one more is" if count == 1 else f"{count} more are"
        message = f"{user} has {unfinished} unfinished jobs: {more} over the limit of {quota.queued}"
        return Refusal(RefusalKind.LIMIT, message)
    return None


def _invalid(message: str) -> Refusal:
    return Refusal(RefusalKind.INVALID, message)


def _submitted(state: ClusterState, event: e.JobSubmitted, now: float) -> None:
    spec = event.spec
    job = Job(event.job, spec, event.user, now, state.submissions, spec.gpus_min, spec.gpus_max)
    job.suspending.proved, job.pool = state.assumed.can_suspend, spec.pool or DEFAULT_POOL
    if spec.needs is not NO_NEEDS and spec.needs != NO_NEEDS:
        job.eligibility = CONSTRAINED
    job.priority, job.weight = spec.priority, spec.weight
    if spec.gpu_mem_bytes:
        job.gpu_memory = GpuMemory(spec.gpu_mem_bytes)
    job.held_by = HeldBy.USER if event.hold else None
    job.reason = "held by user" if event.hold else ITS_TURN
    job.story.append((now, event))
    state.add_job(job)
    if (task := event.task) is not None or spec.after or spec.begin_at or state.gates.limit_users:
        state.enter_gates(job, task)
    if event.again_of is not None:
        job.lineage = replace(job.lineage, again_of=event.again_of)
    if spec.asha is not None:
        halving_tasks.add(state, job)
    if event.operation_id:
        state.operations[event.operation_id] = job.id if task is None else task.array
        if event.request:
            state.requests[event.operation_id] = event.request
    state.refresh(job, now)


def _say(event: e.JobSubmitted) -> str:
    spec, task = event.spec, event.task
    kind = "trial-and-error" if spec.job_class.value == "te" else "best-effort"
    nodes = f" on {spec.nodes} nodes" if spec.nodes > 1 else ""
    nodes = f" on {spec.max_nodes} nodes or fewer" if spec.spread else nodes
    waits = f", task {task.index} of array {task.array}" if task is not None else ""
    waits += "".join(f", after {dependency}" for dependency in spec.after)
    again = f", again after job {event.again_of}" if event.again_of is not None else ""
    size = count_range(spec.gpus_min, spec.gpus_max)
    return f"submitted by {event.user}: {kind}, {size}{nodes}{waits}{again}"


RULES: Final = (Rule(e.JobSubmitted, refuse=_refuse, apply=_submitted, say=_say),)
