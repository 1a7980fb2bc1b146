"""Checks a submitted job, and adds it to the state."""

from typing import Final

from ebbtide_core import events as e
from ebbtide_core.job.job import ITS_TURN, Job
from ebbtide_core.lifecycle import pool_membership, submission_checks, sweeps
from ebbtide_core.model.constraints import NO_NEEDS
from ebbtide_core.model.refusals import Refusal, RefusalKind
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.spec import SpecError, validate
from ebbtide_core.model.types import HeldBy
from ebbtide_core.policies.draft import count_range
from ebbtide_core.resources.infeasible import impossible
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState


def _refuse(state: ClusterState, event: e.JobSubmitted) -> Refusal | None:
    try:
        if event.spec is not state.valid:
            validate(event.spec)
            state.valid = event.spec
        submission_checks.check_submit(state, event)
    except SpecError as error:
        return Refusal(RefusalKind.INVALID, str(error))
    except submission_checks.LimitReachedError as error:
        return Refusal(RefusalKind.LIMIT, str(error))
    if event.task is not None and event.task.array in state.gates.arrays:
        return None  # the check of the first task was for all tasks: they are accepted together
    pool = event.spec.pool or DEFAULT_POOL
    unknown = pool_membership.refuse_unknown(pool, state.settings.pools)
    return unknown or impossible(state.pools[pool], event.spec)


def _submitted(state: ClusterState, event: e.JobSubmitted, now: float) -> None:
    spec = event.spec
    job = Job(event.job, spec, event.user, now, state.submissions, spec.gpus_min, spec.gpus_max)
    job.proved, job.pool = state.assumed.can_suspend, spec.pool or DEFAULT_POOL
    job.constrained = spec.needs is not NO_NEEDS and spec.needs != NO_NEEDS
    job.priority, job.weight, job.gpu_mem_bytes = spec.priority, spec.weight, spec.gpu_mem_bytes
    job.held_by = HeldBy.USER if event.hold else None
    job.reason = "held by user" if event.hold else ITS_TURN
    job.story.append((now, event))
    state.add_job(job)
    if (task := event.task) is not None or spec.after or spec.begin_at or state.gates.limit_users:
        state.enter_gates(job, task)
    if event.again_of is not None:
        job.again_of = event.again_of
    if spec.asha is not None:
        sweeps.entered(state, job)
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
