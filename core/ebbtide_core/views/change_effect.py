"""Tells a user who changes a job's priority or weight if the change has no effect, and why."""

from collections.abc import Mapping, Sequence

from ebbtide_core.events import JobChanged
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobId
from ebbtide_core.planning.policy import JobImportance, Policy
from ebbtide_core.policies.registry import name_of


def missing_effect(policy: Policy, job: Job, change: JobChanged) -> str:
    """Return in one line why ``change`` has no effect on ``job`` under ``policy`` now; empty if it may have one."""
    changed = {
        JobImportance.PRIORITY: change.priority != change.old_priority,
        JobImportance.WEIGHT: change.weight != change.old_weight,
    }
    ignored = [kind.value for kind, is_new in changed.items() if is_new and kind not in policy.goes_by]
    if ignored:
        what = " and ".join(ignored)
        return f"job {job.id}: its {what} will have no effect: policy {name_of(policy)} does not go by {what}"
    if changed[JobImportance.PRIORITY] and job.running and (why := _stays(policy, job)):
        return f"job {job.id}: its priority has no effect while it runs: {why}"
    return ""


def missing_effects(
    policies: Mapping[str, Policy], jobs: Mapping[JobId, Job], changes: Sequence[JobChanged]
) -> list[str]:
    """Return a line for each change that has no effect under the policy of its job's pool."""
    asked = [(policies.get(jobs[change.job].pool), jobs[change.job], change) for change in changes]
    return [why for policy, job, change in asked if policy and (why := missing_effect(policy, job, change))]


def in_short(found: Sequence[str]) -> str:
    """Return the first of these lines and how many more there are, in one line; empty without lines."""
    return f"{found[0]}; so for {len(found) - 1} more" if len(found) > 1 else "".join(found)


def _stays(policy: Policy, job: Job) -> str:
    """Return why no more urgent job takes the place of ``job``, which runs; empty if one may."""
    if not job.preemptible:
        return "it is not preemptible"
    if not policy.preempts():
        return f"policy {name_of(policy)} runs without preemption"
    return "it has a sticky slot, so that it is not preempted" if job.attempts[-1].sticky else ""
